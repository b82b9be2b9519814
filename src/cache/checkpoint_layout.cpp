#include "cache/checkpoint_layout.h"

#include "base/check.h"

namespace baleen::cache {

CheckpointLayout::CheckpointLayout(const CacheShape& shape)
    : window_block_(shape.window_block),
      ratio_(shape.c4_ratio),
      carry_begin_(shape.window_block.block_bytes * (shape.num_layers + shape.num_draft_layers)),
      carry_layer_bytes_(shape.carry_bytes),
      // An overlap row is [carry value | own value | carry score | own score].
      carry_row_bytes_(shape.c4_state_row_bytes / 2),
      index_carry_row_bytes_(shape.index_state_row_bytes / 2),
      streams_begin_(carry_begin_ + shape.carry_bytes * shape.num_c4),
      open_row_bytes_(shape.c128_state_row_bytes) {
  BALEEN_CHECK(ratio_ * (carry_row_bytes_ + index_carry_row_bytes_) == carry_layer_bytes_,
               "carry of a layer: {} bytes",
               carry_layer_bytes_);
  BALEEN_CHECK(streams_begin_ + shape.streams_bytes == shape.checkpoint_slot_bytes(),
               "slot of {} bytes",
               shape.checkpoint_slot_bytes());
}

CheckpointLayout::RowOffsets CheckpointLayout::window(int64_t layer, int64_t row) const {
  return {window_block_.value_offset(layer, row),
          window_block_.scale_row_bytes == 0 ? -1 : window_block_.scale_offset(layer, row)};
}

int64_t CheckpointLayout::carry(int64_t c4_layer, int64_t row) const {
  return carry_begin_ + c4_layer * carry_layer_bytes_ + row * carry_row_bytes_;
}

int64_t CheckpointLayout::index_carry(int64_t c4_layer, int64_t row) const {
  return carry(c4_layer, ratio_) + row * index_carry_row_bytes_;
}

int64_t CheckpointLayout::open_row(int64_t c128_layer, int64_t row) const {
  return (c128_layer * kOpenGroupRows + row) * open_row_bytes_;
}

}  // namespace baleen::cache
