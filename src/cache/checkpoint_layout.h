#pragma once
// Where the parts of a resume point lie in its checkpoint slot and in its open-group blocks. The
// same numbers serve capture, resume, and transfers. Pure data, any thread; offsets are bytes.
//
//   CheckpointLayout layout(shape);
//   int64_t at = layout.window(layer, row).value;   // row of position m - window + row

#include <cstdint>

#include "cache/cache_shape.h"

namespace baleen::cache {

/// Slot: the window block of every layer (draft layers last), then per kC4 layer `ratio` attention
/// carry rows and `ratio` index carry rows, then the streams of the last position.
/// Open-group block: kOpenGroupRows ring rows of every kC128 layer, layer by layer.
class CheckpointLayout {
 public:
  struct RowOffsets {
    int64_t value = 0;
    int64_t scales = -1;  // -1: the format has none
  };

  explicit CheckpointLayout(const CacheShape& shape);

  /// Row i of the window: position m - window + i.
  RowOffsets window(int64_t layer, int64_t row) const;
  /// [carry value | carry score] of position m - ratio + row in the attention compressor.
  int64_t carry(int64_t c4_layer, int64_t row) const;
  int64_t index_carry(int64_t c4_layer, int64_t row) const;
  int64_t streams() const { return streams_begin_; }
  /// Row of an open-group block: a whole ring row.
  int64_t open_row(int64_t c128_layer, int64_t row) const;

  // Half a ring row of an overlapping compressor: what of it is carried.
  int64_t carry_row_bytes() const { return carry_row_bytes_; }
  int64_t index_carry_row_bytes() const { return index_carry_row_bytes_; }

 private:
  BlockLayout window_block_;
  int64_t ratio_ = 0;
  int64_t carry_begin_ = 0;
  int64_t carry_layer_bytes_ = 0;
  int64_t carry_row_bytes_ = 0;
  int64_t index_carry_row_bytes_ = 0;
  int64_t streams_begin_ = 0;
  int64_t open_row_bytes_ = 0;
};

}  // namespace baleen::cache
