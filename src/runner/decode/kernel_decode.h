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

/// Device memory that a path takes beside weights and pools, in bytes.
struct KernelDecodeNeeds {
  int64_t graphs = 0;   // buffers and workspaces of all captured shapes
  int64_t prompts = 0;  // of passes of prompts
  int64_t drafts = 0;   // of the draft layer's passes
  int64_t tables = 0;   // page tables, sampling, streams
  int64_t total() const { return graphs + prompts + drafts + tables; }
};
struct KernelDecodeShape {
  int32_t num_slots = 1;
  int64_t max_context = 0;
  int32_t max_drafts = 0;
  int32_t max_step_tokens = 2048;
  bool invariant = false;
  bool record_choices = false;
};
/// What kernel_decode() will allocate for such a server, without a device: a card of
/// `num_multiprocessors` (H200: 132). Throws ConfigError where the kernels do not cover the model,
/// or the build has none.
KernelDecodeNeeds kernel_decode_needs(const ModelConfig& config,
                                      const KernelDecodeShape& shape,
                                      int32_t num_multiprocessors = 132);

/// Makes the path of the published model in the context's folder. Making it throws Error:
/// CheckpointError naming a tensor stored in a format that the kernels do not read, ConfigError
/// naming a pool laid out otherwise than they expect.
DecodePathMaker kernel_decode();

}  // namespace baleen::runner
