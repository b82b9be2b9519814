#pragma once
// Router of a decode step: scores sqrt(softplus(z)) of the gate's FP32 logits, the best experts by
// score plus bias (or the experts that a hash layer's table names), their weights, the record of
// the routes, and the per-expert lists of the step, built by the last block to finish.
//
//   launch_router({.logits = z, .bias = bias, .routes = ids, .weights = w, .counter = counter,
//                  .num_tokens = m, .num_experts = 256, .top = 6, .scale = 1.5F, .lists = lists},
//                 stream);
//
// Choice: higher score plus bias first, ties to the lower id, NaN below -inf. Output in ascending
// id (equal ids of a table row by slot). Weights: scale * s / (sum + eps), the sum in output order;
// scale / top each when every chosen score is 0. FP32 throughout; a row depends on its own logits
// alone. Errors: sizes outside the limits are a programmer's error (checked); a table id outside
// [0, num_experts) traps. Sync: none; capture-safe; zero tokens give zero units.
// Oracle: router_oracle.h.

#include <cstdint>

#include "device/stream_handle.h"
#include "kernels/experts/expert_lists.h"

namespace baleen::kernels {

struct RouterParams {
  const float* logits = nullptr;       // f32 [num_tokens, num_experts]
  const float* bias = nullptr;         // f32 [num_experts], or null for none
  const int32_t* table = nullptr;      // i32 [vocabulary, top] of a hash layer; null: by score
  const int32_t* token_ids = nullptr;  // i32 [num_tokens], with `table`
  int32_t* routes = nullptr;           // out, i32 [num_tokens, top], ascending
  float* weights = nullptr;            // out, f32 [num_tokens, top]
  void* record = nullptr;      // out, ids as uint8 (num_experts <= 256) or uint16, may be null
  int64_t record_stride = 0;   // elements between tokens of the record
  int32_t* counter = nullptr;  // i32 [1], zero; zero again after every launch
  int32_t num_tokens = 0;      // at most 1,024
  int32_t num_experts = 0;     // at most 512
  int32_t top = 0;             // 1..7, at most num_experts
  float scale = 1.0F;
  float eps = 0.0F;
  bool shared_expert = false;
  bool programmatic = false;  // may start before its predecessor ended
  ExpertLists lists = {};     // out; `num_units` null: no lists
};

void launch_router(const RouterParams& params, device::StreamHandle stream);

}  // namespace baleen::kernels
