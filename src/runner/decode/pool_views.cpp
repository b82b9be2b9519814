#include "runner/decode/pool_views.h"

#include <string>

#include "base/error.h"

namespace baleen::runner {
namespace {

using cache::BlockLayout;
using cache::EntryCodec;

void expect(bool same, const char* pool, const char* what) {
  if (!same) {
    throw ConfigError(std::string("decode on kernels: ") + what + " of the " + pool +
                      " pool are not what the kernels read");
  }
}

kernels::KvPoolView kv_view(const char* pool, uint8_t* base, const BlockLayout& layout) {
  const kernels::KvPoolView view{base, layout.block_bytes, static_cast<int32_t>(layout.rows)};
  expect(layout.block_bytes == kernels::kv_page_bytes(layout.rows) &&
             layout.value_row_bytes == kernels::kKvValueBytes &&
             layout.scale_row_bytes == kernels::kKvScaleBytes,
         pool,
         "pages");
  expect(reinterpret_cast<uintptr_t>(base) % 16 == 0, pool, "addresses");
  return view;
}

kernels::IndexPoolView index_view(uint8_t* base, const BlockLayout& layout) {
  constexpr auto kFormat = kernels::IndexKeyFormat::kFp4InFp8;
  expect(layout.rows == kC4PageEntries &&
             layout.block_bytes == kernels::index_page_bytes(kFormat, layout.rows) &&
             layout.value_row_bytes == kernels::index_value_bytes(kFormat) &&
             layout.scale_row_bytes == kernels::kIndexScaleBytes,
         "index",
         "pages");
  expect(reinterpret_cast<uintptr_t>(base) % 16 == 0, "index", "addresses");
  return {base, layout.block_bytes, static_cast<int32_t>(layout.rows), kFormat};
}

void set_ring(DecodeCompressor& compressor,
              const cache::RowPlace& first,
              int64_t rows,
              int64_t row_bytes,
              int64_t row_floats,
              const char* pool) {
  expect(row_bytes == row_floats * static_cast<int64_t>(sizeof(float)), pool, "rows");
  compressor.ring = reinterpret_cast<float*>(first.value);
  compressor.ring_size = static_cast<int32_t>(rows);
}

}  // namespace

void set_pool_views(DecodeModel& model, cache::PoolMemory& pools) {
  const cache::CacheShape& shape = pools.shape();
  const cache::CacheSizes& sizes = pools.sizes();
  const ModelConfig& config = model.config;
  expect(pools.kv_codec().form() == EntryCodec::Form::kPackedKv &&
             pools.kv_codec().rope_dim() == kernels::kKvRopeDims,
         "window",
         "formats");
  expect(shape.num_c4 == 0 || (pools.index_codec().form() == EntryCodec::Form::kIndexFp8 &&
                               pools.index_codec().rounding() == cache::IndexRounding::kE2m1),
         "index",
         "formats");
  expect(
      shape.num_c128 == 0 || shape.c128_storage == cache::C128Storage::kShared, "kC128", "blocks");
  model.num_full_pages = sizes.full_pages + 1;  // with the sink
  int64_t c4 = 0;
  int64_t c128 = 0;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    DecodeLayer& layer = model.layers[i];
    layer.window = kv_view(
        "window", pools.swa(static_cast<int64_t>(i), cache::SwaPage(0), 0).value, shape.swa_block);
    const cache::FullPage sink(0);
    if (layer.spec.kind == LayerKind::kC4) {
      layer.entries = kv_view("kC4", pools.c4(c4, sink, 0).value, shape.c4_block);
      layer.index_keys = index_view(pools.index(c4, sink, 0).value, shape.index_block);
      set_ring(layer.main,
               pools.c4_state(c4, cache::SwaPage(0), 0),
               sizes.c4_ring_rows,
               shape.c4_state_row_bytes,
               4 * config.head_dim,
               "kC4 state");
      set_ring(layer.index,
               pools.index_state(c4, cache::SwaPage(0), 0),
               sizes.c4_ring_rows,
               shape.index_state_row_bytes,
               4 * config.index_head_dim,
               "index state");
      ++c4;
    } else if (layer.spec.kind == LayerKind::kC128) {
      layer.entries = kv_view("kC128", pools.c128(c128, sink, 0).value, shape.c128_block);
      // Ring 0 of the pool is the sink; that of request slot 0 follows.
      set_ring(layer.main,
               pools.c128_state(c128, RequestSlot(0), 0),
               sizes.c128_ring_rows,
               shape.c128_state_row_bytes,
               2 * config.head_dim,
               "kC128 state");
      ++c128;
    }
  }
}

void set_draft_pool_view(DecodeModel& draft, int64_t main_layers, cache::PoolMemory& pools) {
  draft.num_full_pages = pools.sizes().full_pages + 1;
  draft.layers.at(0).window = kv_view(
      "draft window", pools.swa(main_layers, cache::SwaPage(0), 0).value, pools.shape().swa_block);
}

}  // namespace baleen::runner
