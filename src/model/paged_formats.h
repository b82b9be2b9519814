#pragma once
// In which formats a model's rows go into the shared cache, and pools of those formats in the
// memory of the model's device. A packed format is chosen only where the numerics have already
// rounded rows to it, so that what is read back is what was computed.
//
//   cache::PoolMemory pools = make_pools(config, numerics, at::kFloat, sizes, /*paint=*/false);

#include <ATen/core/Tensor.h>

#include "base/model_config.h"
#include "cache/pool_memory.h"
#include "ops/numerics_config.h"

namespace baleen::model {

/// `compute`: at::kFloat or at::kDouble.
cache::CacheFormats cache_formats(const ops::Numerics& numerics, at::ScalarType compute);

cache::PoolMemory make_pools(const ModelConfig& config,
                             const ops::Numerics& numerics,
                             at::ScalarType compute,
                             const cache::CacheSizes& sizes,
                             bool paint,
                             at::Device device = at::kCPU);

}  // namespace baleen::model
