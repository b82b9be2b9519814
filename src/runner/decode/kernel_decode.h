#pragma once
// The decode path on kernels: packed weights beside those of the model's body, the pools of the
// shared cache, and a captured graph per step. Torch-free. A build without CUDA has the same
// functions, which refuse.
//
//   if (kernel_decode_refusal(config, formats, numerics).empty()) {
//     runner_config.decode_path = kernel_decode();
//   }

#include <cstdint>
#include <string>

#include "base/model_config.h"
#include "cache/cache_shape.h"
#include "runner/decode_path.h"

namespace baleen::runner {

/// Empty when the kernels run a model of this shape, in these numerics (by their name), over pools
/// of these formats, for sequences of up to `max_context` tokens; else the reason.
std::string kernel_decode_refusal(const ModelConfig& config,
                                  const cache::CacheFormats& formats,
                                  const std::string& numerics,
                                  int64_t max_context);

/// Makes the path of the published model in the context's folder. Making it throws Error:
/// CheckpointError naming a tensor stored in a format that the kernels do not read, ConfigError
/// naming a pool laid out otherwise than they expect.
DecodePathMaker kernel_decode();

}  // namespace baleen::runner
