#include "cache/page_mover.h"

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace baleen::cache {
namespace {

/// Page that holds `position`, out of a list of blocks.
template <class Block>
SwaPage window_page(const std::vector<Block>& blocks, int64_t position, SwaPage Block::* page) {
  for (const Block& block : blocks) {
    if (block.block == position / kPageTokens) {
      BALEEN_CHECK((block.*page).value() > 0, "position {} has no window page", position);
      return block.*page;
    }
  }
  BALEEN_CHECK(false, "position {} lies in no block of the job", position);
  return {};
}

}  // namespace

void PageMover::copy_bytes(const uint8_t* from, uint8_t* to, int64_t bytes) const {
  pools_.storage().copy(from, to, bytes);
}

void PageMover::copy_row(RowPlace from, RowPlace to, const BlockLayout& layout) const {
  copy_bytes(from.value, to.value, layout.value_row_bytes);
  if (from.scales != nullptr) {
    copy_bytes(from.scales, to.scales, layout.scale_row_bytes);
  }
}

/// The carried half of an overlap ring row: [carry value | own value | carry score | own score].
void PageMover::pack_carry(const uint8_t* ring_row, uint8_t* carry, int64_t carry_bytes) const {
  copy_bytes(ring_row, carry, carry_bytes / 2);
  copy_bytes(ring_row + carry_bytes, carry + carry_bytes / 2, carry_bytes / 2);
}

void PageMover::unpack_carry(const uint8_t* carry, uint8_t* ring_row, int64_t carry_bytes) const {
  copy_bytes(carry, ring_row, carry_bytes / 2);
  copy_bytes(carry + carry_bytes / 2, ring_row + carry_bytes, carry_bytes / 2);
}

RowPlace PageMover::slot_window(CheckpointSlot slot, int64_t layer, int64_t row) {
  uint8_t* base = pools_.checkpoint(slot.value());
  const CheckpointLayout::RowOffsets at = layout_.window(layer, row);
  return {base + at.value, at.scales < 0 ? nullptr : base + at.scales};
}

void PageMover::copy_window(RowPlace from, RowPlace to) const {
  copy_row(from, to, pools_.shape().swa_block);
}

std::span<uint8_t> PageMover::streams(CheckpointSlot slot) {
  return {pools_.checkpoint(slot.value()) + layout_.streams(),
          static_cast<std::size_t>(pools_.shape().streams_bytes)};
}

void PageMover::resume(const ResumeCopy& copy) {
  const CacheShape& shape = pools_.shape();
  const int64_t position = copy.position;
  for (const ResumeCopy::Block& block : copy.blocks) {
    if (block.source == block.target) {
      continue;
    }
    const int64_t tokens = std::min(position - block.block * kPageTokens, kPageTokens);
    for (int64_t layer = 0; layer < shape.num_c4; ++layer) {
      for (int64_t row = 0; row < tokens / shape.c4_ratio; ++row) {
        copy_row(pools_.c4(layer, block.source, row),
                 pools_.c4(layer, block.target, row),
                 shape.c4_block);
        copy_row(pools_.index(layer, block.source, row),
                 pools_.index(layer, block.target, row),
                 shape.index_block);
      }
    }
    for (int64_t layer = 0; layer < shape.num_c128; ++layer) {
      for (int64_t row = 0; row < tokens / shape.c128_ratio; ++row) {
        copy_row(pools_.c128(layer, block.source, row),
                 pools_.c128(layer, block.target, row),
                 shape.c128_block);
      }
    }
  }
  for (int64_t at = std::max<int64_t>(0, position - shape.window); at < position; ++at) {
    const SwaPage page = window_page(copy.blocks, at, &ResumeCopy::Block::window);
    for (int64_t layer = 0; layer < shape.num_layers + shape.num_draft_layers; ++layer) {
      copy_window(slot_window(copy.source, layer, at - (position - shape.window)),
                  pools_.swa(layer, page, at % kPageTokens));
    }
  }
  const uint8_t* slot = pools_.checkpoint(copy.source.value());
  for (int64_t row = 0; row < shape.c4_ratio; ++row) {
    const int64_t at = position - shape.c4_ratio + row;
    if (at < 0) {
      continue;
    }
    const SwaPage page = window_page(copy.blocks, at, &ResumeCopy::Block::window);
    for (int64_t layer = 0; layer < shape.num_c4; ++layer) {
      unpack_carry(slot + layout_.carry(layer, row),
                   pools_.c4_state(layer, page, at).value,
                   layout_.carry_row_bytes());
      unpack_carry(slot + layout_.index_carry(layer, row),
                   pools_.index_state(layer, page, at).value,
                   layout_.index_carry_row_bytes());
    }
  }
  const int64_t open_rows = shape.c128_ratio == 0 ? 0 : position % shape.c128_ratio;
  for (int64_t row = 0; row < open_rows; ++row) {
    const auto block = static_cast<std::size_t>(row / kOpenGroupRows);
    BALEEN_CHECK(
        block < copy.open_blocks.size(), "open row {} of {} blocks", row, copy.open_blocks.size());
    const uint8_t* base = pools_.open_group(copy.open_blocks[block].value());
    for (int64_t layer = 0; layer < shape.num_c128; ++layer) {
      copy_bytes(base + layout_.open_row(layer, row % kOpenGroupRows),
                 pools_.c128_state(layer, copy.slot, position - open_rows + row).value,
                 shape.c128_state_row_bytes);
    }
  }
  pools_.storage().finish_copies();
}

void PageMover::capture(const CaptureJob& job, const PassRows* pass) {
  const CacheShape& shape = pools_.shape();
  const int64_t position = job.position;
  BALEEN_CHECK(!job.in_pass || pass != nullptr, "capture at {} has no pass", position);
  for (int64_t at = std::max<int64_t>(0, position - shape.window); at < position; ++at) {
    const SwaPage page = window_page(job.window, at, &CaptureJob::WindowPage::page);
    for (int64_t layer = 0; layer < shape.num_layers + shape.num_draft_layers; ++layer) {
      copy_window(pools_.swa(layer, page, at % kPageTokens),
                  slot_window(job.target, layer, at - (position - shape.window)));
    }
  }
  uint8_t* slot = pools_.checkpoint(job.target.value());
  for (int64_t row = 0; row < shape.c4_ratio; ++row) {
    const int64_t at = position - shape.c4_ratio + row;
    if (at < 0) {
      continue;
    }
    for (int64_t layer = 0; layer < shape.num_c4; ++layer) {
      const uint8_t* attention_row = nullptr;
      const uint8_t* index_row = nullptr;
      if (job.in_pass) {
        attention_row = pass->attention(layer, at);
        index_row = pass->index(layer, at);
      } else {
        const SwaPage page = window_page(job.window, at, &CaptureJob::WindowPage::page);
        attention_row = pools_.c4_state(layer, page, at).value;
        index_row = pools_.index_state(layer, page, at).value;
      }
      pack_carry(attention_row, slot + layout_.carry(layer, row), layout_.carry_row_bytes());
      pack_carry(
          index_row, slot + layout_.index_carry(layer, row), layout_.index_carry_row_bytes());
    }
  }
  const int64_t open_rows = shape.c128_ratio == 0 ? 0 : position % shape.c128_ratio;
  for (int64_t row = 0; row < open_rows; ++row) {
    const auto block = static_cast<std::size_t>(row / kOpenGroupRows);
    BALEEN_CHECK(
        block < job.open_blocks.size(), "open row {} of {} blocks", row, job.open_blocks.size());
    uint8_t* base = pools_.open_group(job.open_blocks[block].value());
    for (int64_t layer = 0; layer < shape.num_c128; ++layer) {
      copy_bytes(pools_.c128_state(layer, job.slot, position - open_rows + row).value,
                 base + layout_.open_row(layer, row % kOpenGroupRows),
                 shape.c128_state_row_bytes);
    }
  }
  pools_.storage().finish_copies();
}

}  // namespace baleen::cache
