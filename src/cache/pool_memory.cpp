#include "cache/pool_memory.h"

#include <utility>

#include "base/check.h"
#include "cache/state_rings.h"

namespace baleen::cache {
namespace {

constexpr uint8_t kPaint = 0xFF;

}  // namespace

uint8_t* PoolMemory::Region::layer(int64_t index) {
  BALEEN_DCHECK(index >= 0 && index < layers, "layer={} layers={}", index, layers);
  return memory.get() + index * layer_bytes;
}

PoolMemory::Region PoolMemory::allocate(int64_t layers, int64_t layer_bytes) const {
  Region region{.memory = nullptr, .layers = layers, .layer_bytes = layer_bytes};
  if (region.bytes() == 0) {
    return region;
  }
  region.memory = storage_->allocate(region.bytes());
  if (paint_) {
    storage_->fill(region.memory.get(), kPaint, region.bytes());
  }
  return region;
}

PoolMemory::PoolMemory(const CacheShape& shape,
                       const CacheFormats& formats,
                       const Codecs& codecs,
                       const CacheSizes& sizes,
                       bool paint,
                       std::shared_ptr<PoolStorage> storage)
    : shape_(shape),
      formats_(formats),
      codecs_(codecs),
      sizes_(sizes),
      paint_(paint),
      storage_(std::move(storage)) {
  // The byte counts of the planner, per layer.
  CacheShape one = shape;
  one.num_layers = 1;
  one.num_draft_layers = 0;
  one.num_c4 = shape.num_c4 > 0 ? 1 : 0;
  one.num_c128 = shape.num_c128 > 0 ? 1 : 0;
  const CacheBytes bytes = cache_bytes(one, sizes);
  swa_ = allocate(shape.num_layers + shape.num_draft_layers, bytes.swa);
  c4_ = allocate(shape.num_c4, bytes.c4);
  index_ = allocate(shape.num_c4, bytes.indexer);
  c128_ = allocate(shape.num_c128, bytes.c128);
  c4_state_ = allocate(shape.num_c4, bytes.c4_state);
  index_state_ = allocate(shape.num_c4, bytes.indexer_state);
  c128_state_ = allocate(shape.num_c128, bytes.c128_state);
  checkpoints_ = allocate(sizes.checkpoint_slots, shape.checkpoint_slot_bytes());
  open_groups_ = allocate(sizes.open_group_blocks, shape.open_group_block_bytes());
}

int64_t PoolMemory::bytes() const {
  return swa_.bytes() + c4_.bytes() + c128_.bytes() + index_.bytes() + c4_state_.bytes() +
         index_state_.bytes() + c128_state_.bytes() + checkpoints_.bytes() + open_groups_.bytes();
}

RowPlace PoolMemory::place(uint8_t* base, const BlockLayout& layout, int64_t block, int64_t row) {
  return {base + layout.value_offset(block, row),
          layout.scale_row_bytes == 0 ? nullptr : base + layout.scale_offset(block, row)};
}

RowPlace PoolMemory::swa(int64_t layer, SwaPage page, int64_t row) {
  BALEEN_DCHECK(page.value() >= 0 && page.value() <= sizes_.swa_pages, "page={}", page.value());
  return place(swa_.layer(layer), shape_.swa_block, page.value(), row);
}

RowPlace PoolMemory::c4(int64_t layer, FullPage page, int64_t row) {
  BALEEN_DCHECK(page.value() >= 0 && page.value() <= sizes_.full_pages, "page={}", page.value());
  return place(c4_.layer(layer), shape_.c4_block, page.value(), row);
}

RowPlace PoolMemory::c128(int64_t layer, FullPage page, int64_t row) {
  BALEEN_DCHECK(page.value() >= 0 && page.value() <= sizes_.full_pages, "page={}", page.value());
  const int64_t entry = page.value() * shape_.c128_rows_per_page() + row;
  return place(c128_.layer(layer),
               shape_.c128_block,
               entry / shape_.c128_block.rows,
               entry % shape_.c128_block.rows);
}

RowPlace PoolMemory::index(int64_t layer, FullPage page, int64_t row) {
  BALEEN_DCHECK(page.value() >= 0 && page.value() <= sizes_.full_pages, "page={}", page.value());
  return place(index_.layer(layer), shape_.index_block, page.value(), row);
}

int64_t PoolMemory::c4_ring_row(SwaPage page, int64_t position) const {
  return c4_state_slot(page,
                       TokenPos(static_cast<int32_t>(position)),
                       static_cast<int32_t>(sizes_.c4_ring_rows))
      .value();
}

RowPlace PoolMemory::c4_state(int64_t layer, SwaPage page, int64_t position) {
  return {c4_state_.layer(layer) + c4_ring_row(page, position) * shape_.c4_state_row_bytes,
          nullptr};
}

RowPlace PoolMemory::index_state(int64_t layer, SwaPage page, int64_t position) {
  return {index_state_.layer(layer) + c4_ring_row(page, position) * shape_.index_state_row_bytes,
          nullptr};
}

RowPlace PoolMemory::c128_state(int64_t layer, RequestSlot slot, int64_t position) {
  BALEEN_DCHECK(slot.value() < sizes_.request_slots, "slot={}", slot.value());
  const int64_t row = c128_state_slot(slot,
                                      TokenPos(static_cast<int32_t>(position)),
                                      static_cast<int32_t>(sizes_.c128_ring_rows))
                          .value();
  return {c128_state_.layer(layer) + row * shape_.c128_state_row_bytes, nullptr};
}

uint8_t* PoolMemory::checkpoint(int64_t slot) {
  return checkpoints_.layer(slot);
}

uint8_t* PoolMemory::open_group(int64_t block) {
  return open_groups_.layer(block);
}

void PoolMemory::paint_full_page(FullPage page) {
  if (!paint_) {
    return;
  }
  for (int64_t layer = 0; layer < shape_.num_c4; ++layer) {
    storage_->fill(c4(layer, page, 0).value, kPaint, shape_.c4_block.block_bytes);
    storage_->fill(index(layer, page, 0).value, kPaint, shape_.index_block.block_bytes);
  }
  for (int64_t layer = 0; layer < shape_.num_c128; ++layer) {
    for (int64_t row = 0; row < shape_.c128_rows_per_page(); ++row) {
      const RowPlace at = c128(layer, page, row);
      storage_->fill(at.value, kPaint, shape_.c128_block.value_row_bytes);
      if (at.scales != nullptr) {
        storage_->fill(at.scales, kPaint, shape_.c128_block.scale_row_bytes);
      }
    }
  }
}

void PoolMemory::paint_swa_page(SwaPage page) {
  if (!paint_) {
    return;
  }
  for (int64_t layer = 0; layer < shape_.num_layers + shape_.num_draft_layers; ++layer) {
    storage_->fill(swa(layer, page, 0).value, kPaint, shape_.swa_block.block_bytes);
  }
  for (int64_t layer = 0; layer < shape_.num_c4; ++layer) {
    storage_->fill(
        c4_state(layer, page, 0).value, kPaint, sizes_.c4_ring_rows * shape_.c4_state_row_bytes);
    storage_->fill(index_state(layer, page, 0).value,
                   kPaint,
                   sizes_.c4_ring_rows * shape_.index_state_row_bytes);
  }
}

void PoolMemory::paint_request_ring(RequestSlot slot) {
  if (!paint_) {
    return;
  }
  for (int64_t layer = 0; layer < shape_.num_c128; ++layer) {
    storage_->fill(c128_state(layer, slot, 0).value,
                   kPaint,
                   sizes_.c128_ring_rows * shape_.c128_state_row_bytes);
  }
}

}  // namespace baleen::cache
