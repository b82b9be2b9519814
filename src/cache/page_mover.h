#pragma once
// Carries out the copies that the bookkeeping asks for, in the storage of the pools: a sequence
// that continues at a resume point, and the writing of one. Owned by the executor, used on its
// thread, between the passes that the jobs belong to.
//
//   PageMover mover(pools);
//   mover.resume(copy);                          // before the step's rows
//   mover.capture(job, in_pass_rows);            // after the step's last layer

#include <cstdint>
#include <functional>

#include "cache/checkpoint_layout.h"
#include "cache/pool_memory.h"
#include "cache/sequence_cache.h"

namespace baleen::cache {

/// What a capture inside a pass takes from the pass itself: where the ring row of a position lies,
/// as bytes in the rings' element type and in the storage of the pools, attention or index
/// compressor of a kC4 layer. Read before the sequence's next pass.
struct PassRows {
  std::function<const uint8_t*(int64_t c4_layer, int64_t position)> attention;
  std::function<const uint8_t*(int64_t c4_layer, int64_t position)> index;
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
  void copy_bytes(const uint8_t* from, uint8_t* to, int64_t bytes) const;
  void copy_row(RowPlace from, RowPlace to, const BlockLayout& layout) const;
  void copy_window(RowPlace from, RowPlace to) const;
  void pack_carry(const uint8_t* ring_row, uint8_t* carry, int64_t carry_bytes) const;
  void unpack_carry(const uint8_t* carry, uint8_t* ring_row, int64_t carry_bytes) const;
  RowPlace slot_window(CheckpointSlot slot, int64_t layer, int64_t row);

  PoolMemory& pools_;
  CheckpointLayout layout_;
};

}  // namespace baleen::cache
