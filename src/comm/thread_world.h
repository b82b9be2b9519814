#pragma once
// Ranks as threads of one process, for the CPU: every rank runs the same function on its own
// thread, and groups read each other's memory directly. When a rank throws, every other rank's next
// or current wait ends with a CommError, and the first error comes out of run_ranks; nothing hangs.
//
//   run_ranks(4, {}, [](World& world) { Mesh mesh(world, {.tp = 4}); train(mesh); });

#include <cstdint>
#include <functional>

#include "comm/world.h"

namespace baleen::comm {

struct ThreadWorldOptions {
  int64_t wait_timeout_ms = 60'000;    // of one call; then all ranks end, with who waited for whom
  int64_t max_pending_messages = 256;  // per pair of ranks; a send beyond waits
};

/// Runs `body` on `size` ranks and returns when all have ended. Rethrows the error of the rank that
/// failed first.
void run_ranks(int size,
               const ThreadWorldOptions& options,
               const std::function<void(World&)>& body);

}  // namespace baleen::comm
