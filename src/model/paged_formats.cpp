#include "model/paged_formats.h"

#include "model/device_storage.h"

namespace baleen::model {
namespace {

cache::IndexRounding index_rounding(const ops::Numerics& numerics) {
  switch (numerics.indexer_quant) {
    case ops::IndexerQuant::kFp4:
      return cache::IndexRounding::kE2m1;
    case ops::IndexerQuant::kFp8:
      return cache::IndexRounding::kE4m3;
    case ops::IndexerQuant::kNone:
      break;
  }
  return cache::IndexRounding::kNone;
}

}  // namespace

cache::CacheFormats cache_formats(const ops::Numerics& numerics, at::ScalarType compute) {
  const bool f64 = compute == at::kDouble;
  cache::CacheFormats formats;
  formats.kv = numerics.kv_s8 && numerics.round_activations ? cache::KvFormat::kPacked
               : f64                                        ? cache::KvFormat::kRawF64
                                                            : cache::KvFormat::kRawF32;
  formats.index = numerics.indexer_quant != ops::IndexerQuant::kNone ? cache::IndexFormat::kFp8
                  : f64                                              ? cache::IndexFormat::kRawF64
                                                                     : cache::IndexFormat::kRawF32;
  formats.state_element_bytes = f64 ? 8 : 4;
  formats.stream_element_bytes = numerics.round_activations ? 2 : f64 ? 8 : 4;
  return formats;
}

cache::PoolMemory make_pools(const ModelConfig& config,
                             const ops::Numerics& numerics,
                             at::ScalarType compute,
                             const cache::CacheSizes& sizes,
                             bool paint,
                             at::Device device) {
  const cache::CacheFormats formats = cache_formats(numerics, compute);
  const cache::PoolMemory::Codecs codecs{
      .kv = cache::EntryCodec::kv(formats.kv, config.head_dim, config.qk_rope_head_dim),
      .index =
          cache::EntryCodec::index(formats.index, config.index_head_dim, index_rounding(numerics))};
  return cache::PoolMemory(cache::cache_shape(config, formats),
                           formats,
                           codecs,
                           sizes,
                           paint,
                           device.is_cpu() ? cache::PoolStorage::host() : device_storage(device));
}

}  // namespace baleen::model
