#pragma once
// Carries out the copies that the bookkeeping asks for on the host's pools: a sequence that
// continues at a resume point, and the writing of one. Owned by the executor, used on its thread,
// between the passes that the jobs belong to.
//
//   PageMover mover(pools);
//   mover.resume(copy);                          // before the step's rows
//   mover.capture(job, in_pass_rows);            // after the step's last layer

#include <cstdint>
#include <functional>
#include <span>

#include "cache/checkpoint_layout.h"
#include "cache/pool_memory.h"
#include "cache/sequence_cache.h"

namespace baleen::cache {

/// What a capture inside a pass takes from the pass itself, as bytes in the rings' element type.
struct PassRows {
  /// A whole ring row of a position, attention or index compressor of a kC4 layer.
  std::function<void(int64_t c4_layer, int64_t position, std::span<uint8_t> row)> attention;
  std::function<void(int64_t c4_layer, int64_t position, std::span<uint8_t> row)> index;
};

class PageMover {
 public:
  explicit PageMover(PoolMemory& pools) : pools_(pools), layout_(pools.shape()) {}

  /// Entries, window rows, carry rows and open rows to where the sequence's own pages want them.
  /// The streams stay in the slot: only a draft layer reads them.
  void resume(const ResumeCopy& copy);

  /// Bytes of the streams of position - 1 in a slot.
  std::span<uint8_t> streams(CheckpointSlot slot);

  /// Everything but the streams into the job's slot and blocks. `pass` serves jobs with `in_pass`;
  /// without, carry rows come from the rings.
  void capture(const CaptureJob& job, const PassRows* pass);

 private:
  void copy_window(RowPlace from, RowPlace to) const;
  RowPlace slot_window(CheckpointSlot slot, int64_t layer, int64_t row);

  PoolMemory& pools_;
  CheckpointLayout layout_;
};

}  // namespace baleen::cache
