#pragma once
// Linear layers for few tokens (decode and verify): y[m, o] = sum_i x[m, i] * W[o, i]. One launch
// takes several matrices ("tasks") at once, of different formats too, so that all products of one
// stage fill the card together. Every weight is read once; memory bandwidth is the bound.
//
//   LinearParams params{.tasks = {wq_a, wkv}, .num_tasks = 2, .num_tokens = 4};
//   params.programmatic = true;             // weights are requested before the predecessor ends
//   launch_linear(params, stream);
//
// Formats: e4m3 weights with one scale per 128 x 128 meet e4m3 activations with one scale per 128
// inputs; the partial product of each 128 inputs is added in FP32 after scaling. bf16 weights meet
// bf16 activations in FP32 accumulators. Sums: `leaves` equal stretches of inputs, each in
// ascending order, added as a balanced binary tree. The leaves depend on the shape and the mode
// alone, so an output row has the same bits for every num_tokens and every neighbour.
//
// Errors: shapes outside supports_linear() are a programmer error (checked). Sync: none;
// capture-safe; allocates nothing. num_tokens = 0 launches nothing. Oracle: linear_oracle.h.

#include <array>
#include <cstdint>

#include "device/stream_handle.h"

namespace baleen::kernels {

enum class WeightFormat : uint8_t {
  kE4m3,        // e4m3 with scales, products in FP8
  kBf16,        // bf16, no scales
  kE4m3AsBf16,  // e4m3 with scales, products in bf16 (grouped_projection.h)
};
enum class ScaleFormat : uint8_t { kUe8m0, kFloat32 };
enum class LinearOutput : uint8_t {
  kBf16,
  kFloat32,
  kE4m3,  // grouped_projection.h only: rounded to bf16, then e4m3 with one UE8M0 scale per 128
};

constexpr int64_t element_bytes(WeightFormat format) {
  return format == WeightFormat::kBf16 ? 2 : 1;
}

/// `kFast`: sums are cut as suits the number of multiprocessors. `kInvariant`: by the rule of
/// invariant_leaves() for the unsharded matrix, whatever the launch holds.
enum class LinearMode : uint8_t { kFast, kInvariant };

struct LinearTask {
  const void* weight = nullptr;         // packed by pack_weight, 16-byte aligned
  const void* weight_scales = nullptr;  // [ceil(outputs / 128), inputs / 128]; null for kBf16
  const void* x = nullptr;              // [num_tokens, x_stride], e4m3 for kE4m3, else bf16
  const void* x_scales = nullptr;       // [num_tokens, x_scale_stride]; null unless kE4m3
  void* y = nullptr;                    // [num_tokens, y_stride], out
  uint8_t* y_scales = nullptr;          // UE8M0 [num_tokens, outputs * groups / 128], kE4m3 output
  int64_t x_stride = 0;                 // elements between tokens; rows are 16-byte aligned
  int64_t y_stride = 0;                 // elements between tokens
  int64_t x_scale_stride = 0;           // scales between tokens
  int32_t num_outputs = 0;              // rows of one group's matrix, a multiple of 64
  int32_t num_inputs = 0;               // a multiple of 128
  int32_t groups = 1;  // matrices stacked in `weight`; group g reads x columns from g * num_inputs
  WeightFormat format = WeightFormat::kE4m3;
  ScaleFormat weight_scale_format = ScaleFormat::kUe8m0;
  ScaleFormat x_scale_format = ScaleFormat::kUe8m0;
  LinearOutput output = LinearOutput::kBf16;
  int32_t leaves = 0;  // kInvariant: stretches of this shard's sum (see invariant_leaves)
};

inline constexpr int32_t kMaxLinearTasks = 6;

/// Overrides of what the planner would choose; 0 means its choice. For benchmarks and tests. Any of
/// them but `split` asks for the ring form.
struct LinearTuning {
  int32_t cluster = 0;       // blocks that share a sum: 1, 2, 4 or 8
  int32_t num_clusters = 0;  // clusters that share the row blocks
  int32_t stages = 0;        // 16 KiB weight copies in flight per block
  int32_t split = 0;         // the direct form (linear_direct.cuh): a block owns 64 / split rows
};

struct LinearParams {
  std::array<LinearTask, kMaxLinearTasks> tasks = {};
  int32_t num_tasks = 0;
  int32_t num_tokens = 0;
  LinearMode mode = LinearMode::kFast;
  bool programmatic = false;  // may start before its predecessor in the stream has ended
  LinearTuning tuning = {};
};

/// Leaves of an unsharded product in invariant mode. Row-parallel products (sharded along their
/// inputs) have 8, so that every shard of 1, 2, 4 or 8 holds whole leaves; others the fewest of 1,
/// 2, 4, 8 that give at least 120 units of 64 rows without falling below 512 inputs.
constexpr int32_t invariant_leaves(int64_t outputs, int64_t inputs, bool row_parallel) {
  int32_t leaves = 1;
  if (row_parallel) {
    while (leaves < 8 && inputs % (leaves * 2 * 128) == 0) {
      leaves *= 2;
    }
    return leaves;
  }
  while (leaves < 8 && outputs / 64 * leaves < 120 && inputs / (leaves * 2) >= 512 &&
         inputs % (leaves * 2 * 128) == 0) {
    leaves *= 2;
  }
  return leaves;
}

/// True when the Hopper kernel can run these tasks in one launch.
bool supports_linear(const LinearParams& params);

/// Needs compute capability 9.0.
void launch_linear(const LinearParams& params, device::StreamHandle stream);

/// Any GPU; plain loops, the same rounding points, leaves and tree (the order inside a block of 128
/// inputs differs from the tensor cores').
void launch_linear_portable(const LinearParams& params, device::StreamHandle stream);

}  // namespace baleen::kernels
