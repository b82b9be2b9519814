#include <cmath>

#include "device/launch.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_layout.h"
#include "kernels/linear/linear_portable.h"
#include "numerics/bfloat16.h"
#include "numerics/float8.h"

namespace baleen::kernels {
namespace {

constexpr int kThreads = 128;

struct PortableTask {
  LinearTask task;
  int num_tokens;
  int leaves;
};

__device__ float scale_at(const void* scales, ScaleFormat format, int64_t at) {
  return format == ScaleFormat::kUe8m0
             ? numerics::ue8m0_to_float(static_cast<const uint8_t*>(scales)[at])
             : static_cast<const float*>(scales)[at];
}

/// Sum of one leaf, in ascending blocks of 128 inputs.
__device__ float leaf_sum(const LinearTask& task, int token, int row, int leaf, int leaves) {
  const auto* weight = static_cast<const uint8_t*>(task.weight);
  const int group = row / task.num_outputs;
  const int64_t x_begin = token * task.x_stride + static_cast<int64_t>(group) * task.num_inputs;
  const bool bf16 = task.format == WeightFormat::kBf16;
  const int64_t tiles = task.num_inputs / (bf16 ? 64 : 128);
  const TileOrder order =
      task.format == WeightFormat::kE4m3AsBf16 ? TileOrder::kFragments : TileOrder::kRows;
  const int blocks_per_leaf = task.num_inputs / 128 / leaves;
  float sum = 0.0F;
  for (int block = leaf * blocks_per_leaf; block < (leaf + 1) * blocks_per_leaf; ++block) {
    float part = 0.0F;
    for (int i = block * 128; i < (block + 1) * 128; ++i) {
      float w = 0.0F;
      float x = 0.0F;
      if (bf16) {
        const int64_t at = packed_weight_offset(order, row, 2 * int64_t{i}, tiles);
        w = numerics::bf16_to_float(*reinterpret_cast<const uint16_t*>(weight + at));
      } else {
        w = numerics::e4m3_to_float(weight[packed_weight_offset(order, row, i, tiles)]);
      }
      x = task.format == WeightFormat::kE4m3
              ? numerics::e4m3_to_float(static_cast<const uint8_t*>(task.x)[x_begin + i])
              : numerics::bf16_to_float(static_cast<const uint16_t*>(task.x)[x_begin + i]);
      part = fmaf(w, x, part);
    }
    float scale = 1.0F;
    if (!bf16) {
      scale = scale_at(task.weight_scales,
                       task.weight_scale_format,
                       static_cast<int64_t>(row / 128) * tiles + block);
    }
    if (task.format == WeightFormat::kE4m3) {
      scale *= scale_at(task.x_scales, task.x_scale_format, token * task.x_scale_stride + block);
    }
    sum = fmaf(part, scale, sum);
  }
  return sum;
}

/// One thread per output; a block covers 128 outputs of one token, one scale of a quantised result.
__global__ void portable_kernel(PortableTask work) {
  __shared__ float largest[kThreads];
  const LinearTask& task = work.task;
  const int token = static_cast<int>(blockIdx.y);
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const bool inside = row < task.num_outputs * task.groups;
  float leaves[8] = {};
  if (inside) {
    for (int leaf = 0; leaf < work.leaves; ++leaf) {
      leaves[leaf] = leaf_sum(task, token, row, leaf, work.leaves);
    }
  }
  for (int distance = 1; distance < work.leaves; distance *= 2) {
    for (int leaf = 0; leaf < work.leaves; leaf += 2 * distance) {
      leaves[leaf] = leaves[leaf] + leaves[leaf + distance];
    }
  }
  const int64_t at = token * task.y_stride + row;
  if (task.output != LinearOutput::kE4m3) {
    if (inside && task.output == LinearOutput::kFloat32) {
      static_cast<float*>(task.y)[at] = leaves[0];
    } else if (inside) {
      static_cast<uint16_t*>(task.y)[at] = numerics::bf16_from_float(leaves[0]);
    }
    return;
  }
  const float value = numerics::round_to_bf16(leaves[0]);
  largest[threadIdx.x] = inside ? fabsf(value) : 0.0F;
  __syncthreads();
  float amax = 1e-4F;
  for (int i = 0; i < kThreads; ++i) {
    amax = fmaxf(amax, largest[i]);
  }
  const float scale = numerics::pow2up(amax * numerics::kInverse448);
  if (inside) {
    static_cast<uint8_t*>(task.y)[at] = numerics::e4m3_from_float(value / scale);
    if (threadIdx.x == 0) {
      task.y_scales[token * (task.num_outputs * task.groups / 128) + row / 128] =
          numerics::ue8m0_from_pow2(scale);
    }
  }
}

}  // namespace

void start_portable_linear(const LinearTask& task,
                           int num_tokens,
                           int leaves,
                           device::StreamHandle stream) {
  const auto rows = static_cast<unsigned>(task.num_outputs * task.groups);
  device::launch(stream,
                 {.grid = dim3((rows + kThreads - 1) / kThreads, static_cast<unsigned>(num_tokens)),
                  .block = dim3(kThreads)},
                 portable_kernel,
                 PortableTask{task, num_tokens, leaves});
}

}  // namespace baleen::kernels
