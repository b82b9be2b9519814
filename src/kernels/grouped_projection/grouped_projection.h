#pragma once
// Grouped output projection of attention for few tokens: group g of each token's row, `inputs` bf16
// values, meets its own matrix [outputs, inputs]. x is not quantised; the weight is stored as e4m3
// with one scale per 128 x 128, which becomes exact bf16 on the way to the tensor cores, or as
// bf16. The result may leave as e4m3 with one UE8M0 scale per 128 outputs, ready for the next FP8
// linear: the sum is rounded to bf16 first, then quantised.
//
//   launch_grouped_projection({.weight = packed, .weight_scales = scales, .x = o, .y = codes,
//       .y_scales = code_scales, .num_tokens = 4, .groups = 8, .outputs = 1024, .inputs = 4096,
//       .output = LinearOutput::kE4m3}, stream);
//
// Sums, leaves and modes are those of linear.h; with bf16 weights the products run through FP32
// accumulators, with e4m3 weights the partial sum of each 128 inputs is added after scaling. NaN
// codes of e4m3 weights are not kept (they read as +-480): the loader refuses them.
// Errors: shapes outside supports_grouped_projection() are a programmer error (checked). Sync:
// none; capture-safe; allocates nothing. Oracle: grouped_projection_oracle.h.

#include <cstdint>

#include "device/stream_handle.h"
#include "kernels/linear/linear.h"

namespace baleen::kernels {

struct GroupedProjectionParams {
  const void* weight = nullptr;         // pack_weight of [groups * outputs, inputs], see `stored`
  const void* weight_scales = nullptr;  // [groups * outputs / 128, inputs / 128]; null for bf16
  const uint16_t* x = nullptr;          // bf16 [num_tokens, groups * inputs]
  void* y = nullptr;                    // [num_tokens, groups * outputs], out
  uint8_t* y_scales = nullptr;          // UE8M0 [num_tokens, groups * outputs / 128], kE4m3 only
  int32_t num_tokens = 0;
  int32_t groups = 0;                               // of this shard
  int32_t outputs = 0;                              // per group, a multiple of 128
  int32_t inputs = 0;                               // per group, a multiple of 128
  WeightFormat stored = WeightFormat::kE4m3AsBf16;  // or kBf16
  ScaleFormat weight_scale_format = ScaleFormat::kUe8m0;
  LinearOutput output = LinearOutput::kBf16;
  LinearMode mode = LinearMode::kFast;
  bool programmatic = false;  // may start before its predecessor in the stream has ended
  LinearTuning tuning = {};
};

bool supports_grouped_projection(const GroupedProjectionParams& params);

/// Needs compute capability 9.0.
void launch_grouped_projection(const GroupedProjectionParams& params, device::StreamHandle stream);

/// Any GPU; plain loops, the same rounding points, leaves and tree.
void launch_grouped_projection_portable(const GroupedProjectionParams& params,
                                        device::StreamHandle stream);

}  // namespace baleen::kernels
