#include "cache/cache_shape.h"

#include <fmt/format.h>

#include "base/error.h"

namespace baleen::cache {
namespace {

/// The common ratio of all layers of a kind, 0 if there are none.
int64_t ratio_of(const ModelConfig& config, LayerKind kind) {
  int64_t ratio = 0;
  for (const LayerSpec& layer : config.layers) {
    if (layer.kind != kind) {
      continue;
    }
    if (ratio != 0 && layer.ratio != ratio) {
      throw ConfigError(fmt::format("config: compress_ratios: {} layers have ratios {} and {}",
                                    layer_kind_name(kind),
                                    ratio,
                                    layer.ratio));
    }
    ratio = layer.ratio;
  }
  if (ratio != 0 && kPageTokens % ratio != 0) {
    throw ConfigError(fmt::format(
        "config: compress_ratios: {} does not divide a page of {} tokens", ratio, kPageTokens));
  }
  return ratio;
}

}  // namespace

int64_t CacheShape::checkpoint_slot_bytes() const {
  return window_block.block_bytes * (num_layers + num_draft_layers) + carry_bytes * num_c4 +
         streams_bytes;
}

int64_t CacheShape::open_group_block_bytes() const {
  return kOpenGroupRows * c128_state_row_bytes * num_c128;
}

CacheShape cache_shape(const ModelConfig& config, const CacheFormats& formats) {
  CacheShape shape;
  shape.num_layers = config.num_hidden_layers;
  shape.num_draft_layers = config.num_nextn_predict_layers;
  shape.num_c4 = config.count_layers(LayerKind::kC4);
  shape.num_c128 = config.count_layers(LayerKind::kC128);
  shape.c4_ratio = ratio_of(config, LayerKind::kC4);
  shape.c128_ratio = ratio_of(config, LayerKind::kC128);
  shape.window = config.sliding_window;
  const int64_t width = config.head_dim;
  const int64_t rope = config.qk_rope_head_dim;
  shape.swa_block = kv_block(formats.kv, width, rope, kPageTokens);
  shape.window_block = kv_block(formats.kv, width, rope, config.sliding_window);
  shape.c128_storage = formats.c128;
  if (shape.num_c4 > 0) {
    const int64_t rows = kPageTokens / shape.c4_ratio;
    const int64_t index_width = config.index_head_dim;
    shape.c4_block = kv_block(formats.kv, width, rope, rows);
    shape.index_block = index_block(formats.index, index_width, rows);
    shape.c4_state_row_bytes = overlap_ring_row_bytes(width, formats.state_element_bytes);
    shape.index_state_row_bytes = overlap_ring_row_bytes(index_width, formats.state_element_bytes);
    shape.carry_bytes =
        shape.c4_ratio * (carry_row_bytes(width, formats.state_element_bytes) +
                          carry_row_bytes(index_width, formats.state_element_bytes));
  }
  if (shape.num_c128 > 0) {
    const int64_t rows =
        formats.c128 == C128Storage::kShared ? kC128BlockRows : shape.c128_rows_per_page();
    shape.c128_block = kv_block(formats.kv, width, rope, rows);
    shape.c128_state_row_bytes = plain_ring_row_bytes(width, formats.state_element_bytes);
  }
  shape.streams_bytes = config.hc_mult * config.hidden_size * formats.stream_element_bytes;
  return shape;
}

}  // namespace baleen::cache
