#pragma once
// The bytes of all pools: what cache_bytes() counts, allocated once, and where each row of each
// layer lies in them. They are host memory unless another storage is given; addresses are those of
// the storage. Owned by the runner, which outlives every sequence; the engine's thread decides
// which pages mean what, the executor's thread alone reads and writes here.
//
//   PoolMemory pools(shape, formats, {.kv = kv, .index = index}, sizes, /*paint=*/true);
//   RowPlace row = pools.c4(layer, page, 3);      // entry 3 of that full page in the layer's C4
//   pool pools.paint_full_page(page);                  // after it was freed: NaN in every layer

#include <cstdint>
#include <memory>

#include "base/strong_id.h"
#include "cache/cache_shape.h"
#include "cache/entry_codec.h"
#include "cache/memory_plan.h"
#include "cache/pool.h"
#include "cache/pool_storage.h"

namespace baleen::cache {

class PoolMemory {
 public:
  /// How rows are stored. Widths and formats must be those that `shape` was made from.
  struct Codecs {
    EntryCodec kv;
    EntryCodec index;  // unused without kC4 layers
  };
  /// `paint`: every byte starts as 0xFF (NaN in each format of a row), and freed pages become so.
  PoolMemory(const CacheShape& shape,
             const CacheFormats& formats,
             const Codecs& codecs,
             const CacheSizes& sizes,
             bool paint,
             std::shared_ptr<PoolStorage> storage = PoolStorage::host());

  const CacheShape& shape() const { return shape_; }
  const CacheFormats& formats() const { return formats_; }
  const CacheSizes& sizes() const { return sizes_; }
  const EntryCodec& kv_codec() const { return codecs_.kv; }
  const EntryCodec& index_codec() const { return codecs_.index; }
  PoolStorage& storage() { return *storage_; }
  /// Bytes allocated; equals cache_bytes(shape, sizes).total().
  int64_t bytes() const;

  // Layers count within their kind; draft layers follow the main ones in the window pool. Rows
  // count from the start of the page. Page 0 is the sink: legal to write, never meaningful to read.
  RowPlace swa(int64_t layer, SwaPage page, int64_t row);
  RowPlace c4(int64_t layer, FullPage page, int64_t row);
  RowPlace c128(int64_t layer, FullPage page, int64_t row);
  RowPlace index(int64_t layer, FullPage page, int64_t row);
  // Rows of compressor rings, by position. The invalid slot's ring is the sink.
  RowPlace c4_state(int64_t layer, SwaPage page, int64_t position);
  RowPlace index_state(int64_t layer, SwaPage page, int64_t position);
  RowPlace c128_state(int64_t layer, RequestSlot slot, int64_t position);
  uint8_t* checkpoint(int64_t slot);
  uint8_t* open_group(int64_t block);

  // No effect without `paint`.
  void paint_full_page(FullPage page);
  void paint_swa_page(SwaPage page);  // with the rings nested in it
  void paint_request_ring(RequestSlot slot);

 private:
  /// `layers` equal stretches of `layer_bytes`.
  struct Region {
    std::shared_ptr<uint8_t> memory;
    int64_t layers = 0;
    int64_t layer_bytes = 0;

    uint8_t* layer(int64_t index);
    int64_t bytes() const { return layers * layer_bytes; }
  };
  int64_t c4_ring_row(SwaPage page, int64_t position) const;
  Region allocate(int64_t layers, int64_t layer_bytes) const;
  static RowPlace place(uint8_t* base, const BlockLayout& layout, int64_t block, int64_t row);

  CacheShape shape_;
  CacheFormats formats_;
  Codecs codecs_;
  CacheSizes sizes_;
  bool paint_ = false;
  std::shared_ptr<PoolStorage> storage_;
  Region swa_;
  Region c4_;
  Region c128_;
  Region index_;
  Region c4_state_;
  Region index_state_;
  Region c128_state_;
  Region checkpoints_;
  Region open_groups_;
};

}  // namespace baleen::cache
