#pragma once
// Plays a plan against a server: a thread per conversation that may be under way, each with its own
// connection, and a line of progress now and then. Blocks until all is answered.
//
//   LoadRun run = run_load(target, plan, level, mix, show_progress);

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "apps/bench/load/load_client.h"
#include "apps/bench/load/load_plan.h"
#include "apps/bench/load/load_target.h"

namespace baleen::apps {

struct LoadRun {
  LoadLevel level;
  std::vector<LoadRecord>
      records;  // by conversation and turn; a turn behind a failed one is left out
  double wall_s = 0.0;
  std::optional<DraftTotals> drafts;  // of this run; none: not measured
};

struct LoadProgress {
  int64_t done = 0;
  int64_t failed = 0;
  int64_t running = 0;
  int64_t total = 0;
  int64_t answer_tokens = 0;
  double wall_s = 0.0;
};

/// `progress` is called about once a second from one thread of its own; may be empty.
LoadRun run_load(const LoadTarget& target,
                 const LoadMix& mix,
                 const LoadPlan& plan,
                 const LoadLevel& level,
                 const std::function<void(const LoadProgress&)>& progress);

}  // namespace baleen::apps
