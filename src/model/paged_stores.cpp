#include "model/paged_stores.h"

#include <utility>

#include "base/check.h"
#include "cache/state_rings.h"
#include "model/paged_rows.h"

namespace baleen::model {
namespace {

using cache::kPageTokens;

template <class Page>
Page page_of(const std::vector<Page>& pages, int64_t position, const char* what) {
  const auto block = static_cast<std::size_t>(position / kPageTokens);
  BALEEN_CHECK(block < pages.size() && pages[block].value() > 0,
               "position {} has no {} page ({} blocks)",
               position,
               what,
               pages.size());
  return pages[block];
}

}  // namespace

PagedStores::PagedStores(const ModelConfig& config,
                         const SequenceStateOptions& options,
                         const at::TensorOptions& tensors,
                         cache::PoolMemory& pools,
                         const cache::SequencePages& pages)
    : config_(config),
      options_(options),
      tensors_(tensors),
      pools_(pools),
      pages_(pages),
      geometry_(cache::cache_geometry(pools.shape())) {}

std::unique_ptr<RowStore> PagedStores::window_rows(int64_t window_layer) const {
  return std::make_unique<PagedRows>(
      PagedRowsLayout{.codec = pools_.kv_codec(),
                      .locate =
                          [&pools = pools_, &pages = pages_, window_layer](int64_t position) {
                            return pools.swa(window_layer,
                                             page_of(pages.swa, position, "window"),
                                             position % kPageTokens);
                          },
                      .paint_truncated = options_.paint_unused,
                      .by_tensors = by_tensors()},
      tensors_);
}

PagedRowsLayout PagedStores::ring(int64_t row_width,
                                  const LayerSpec& spec,
                                  std::function<cache::RowPlace(int64_t)> locate) const {
  const bool overlap = spec.kind == LayerKind::kC4;
  const auto keeps = [overlap, geometry = geometry_, margin = options_.max_rollback](int64_t row,
                                                                                     int64_t end) {
    const auto rule = overlap ? cache::keeps_c4_row : cache::keeps_c128_row;
    return rule(static_cast<int32_t>(row),
                static_cast<int32_t>(end),
                static_cast<int32_t>(margin),
                geometry);
  };
  return {.codec = cache::EntryCodec::ring(row_width, pools_.formats().state_element_bytes),
          .locate = std::move(locate),
          .keeps = keeps,
          .carry_rows = (overlap ? 2 : 1) * spec.ratio - 1,
          .paint_truncated = options_.paint_unused,
          .by_tensors = by_tensors()};
}

std::unique_ptr<RowStore> PagedStores::entries(cache::EntryCodec codec,
                                               const LayerSpec& spec,
                                               int64_t layer,
                                               EntryPlace place) const {
  const auto locate =
      [&pools = pools_, &pages = pages_, layer, place, ratio = spec.ratio](int64_t entry) {
        return (pools.*place)(
            layer, page_of(pages.full, entry * ratio, "full"), entry % (kPageTokens / ratio));
      };
  return std::make_unique<PagedRows>(PagedRowsLayout{.codec = codec,
                                                     .locate = locate,
                                                     .paint_truncated = options_.paint_unused,
                                                     .by_tensors = by_tensors()},
                                     tensors_);
}

CompressorState PagedStores::c4(const LayerSpec& spec, int64_t layer) const {
  const auto locate = [&pools = pools_, &pages = pages_, layer](int64_t position) {
    return pools.c4_state(layer, page_of(pages.swa, position, "window"), position);
  };
  return {.ratio = spec.ratio,
          .rows = std::make_unique<PagedRows>(ring(4 * config_.head_dim, spec, locate), tensors_),
          .entries = entries(pools_.kv_codec(), spec, layer, &cache::PoolMemory::c4)};
}

CompressorState PagedStores::index(const LayerSpec& spec, int64_t layer) const {
  const auto locate = [&pools = pools_, &pages = pages_, layer](int64_t position) {
    return pools.index_state(layer, page_of(pages.swa, position, "window"), position);
  };
  return {
      .ratio = spec.ratio,
      .rows = std::make_unique<PagedRows>(ring(4 * config_.index_head_dim, spec, locate), tensors_),
      .entries = entries(pools_.index_codec(), spec, layer, &cache::PoolMemory::index)};
}

CompressorState PagedStores::c128(const LayerSpec& spec, int64_t layer) const {
  const auto locate = [&pools = pools_, &pages = pages_, layer](int64_t position) {
    return pools.c128_state(layer, pages.slot, position);
  };
  return {.ratio = spec.ratio,
          .rows = std::make_unique<PagedRows>(ring(2 * config_.head_dim, spec, locate), tensors_),
          .entries = entries(pools_.kv_codec(), spec, layer, &cache::PoolMemory::c128)};
}

LayerState PagedStores::layer(const LayerSpec& spec, int64_t window_layer, int64_t of_kind) const {
  LayerState layer;
  layer.raw = window_rows(window_layer);
  if (spec.kind == LayerKind::kC4) {
    layer.main = c4(spec, of_kind);
    layer.index = index(spec, of_kind);
  } else if (spec.kind == LayerKind::kC128) {
    layer.main = c128(spec, of_kind);
  }
  return layer;
}

}  // namespace baleen::model
