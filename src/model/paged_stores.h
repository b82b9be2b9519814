#pragma once
// The stores of a sequence whose rows live in shared pages: which pool, which page and which row
// each position of each layer has, and what a pass must leave in the compressor rings.
//
//   PagedStores stores(config, options, tensors, pools, pages);
//   LayerState layer = stores.layer(spec, window_layer, layer_of_its_kind);

#include <cstdint>
#include <functional>
#include <memory>

#include <ATen/core/Tensor.h>

#include "base/model_config.h"
#include "cache/cache_geometry.h"
#include "cache/pool_memory.h"
#include "cache/sequence_pages.h"
#include "model/paged_rows.h"
#include "model/sequence_state.h"

namespace baleen::model {

class PagedStores {
 public:
  /// Everything is kept by reference and outlives the stores that are made.
  PagedStores(const ModelConfig& config,
              const SequenceStateOptions& options,
              const at::TensorOptions& tensors,
              cache::PoolMemory& pools,
              const cache::SequencePages& pages);

  /// `window_layer` counts main layers, then draft layers; `of_kind` counts layers of the same
  /// kind.
  LayerState layer(const LayerSpec& spec, int64_t window_layer, int64_t of_kind) const;

 private:
  using EntryPlace = cache::RowPlace (cache::PoolMemory::*)(int64_t, cache::FullPage, int64_t);

  bool by_tensors() const { return options_.rows_by_tensors || !tensors_.device().is_cpu(); }
  std::unique_ptr<RowStore> window_rows(int64_t window_layer) const;
  PagedRowsLayout ring(int64_t row_width,
                       const LayerSpec& spec,
                       std::function<cache::RowPlace(int64_t)> locate) const;
  std::unique_ptr<RowStore> entries(cache::EntryCodec codec,
                                    const LayerSpec& spec,
                                    int64_t layer,
                                    EntryPlace place) const;
  CompressorState c4(const LayerSpec& spec, int64_t layer) const;
  CompressorState index(const LayerSpec& spec, int64_t layer) const;
  CompressorState c128(const LayerSpec& spec, int64_t layer) const;

  const ModelConfig& config_;
  const SequenceStateOptions& options_;
  at::TensorOptions tensors_;
  cache::PoolMemory& pools_;
  const cache::SequencePages& pages_;
  cache::CacheGeometry geometry_;
};

}  // namespace baleen::model
