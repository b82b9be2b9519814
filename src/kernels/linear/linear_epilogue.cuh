#pragma once
// What happens to a finished sum: the balanced tree over the blocks of a
// cluster, rounding, and quantising for the next FP8 linear. Included by
// linear_body.cuh.

#include <cstdint>

#include "kernels/linear/linear_device.h"
#include "kernels/linear/linear_ring.cuh"
#include "kernels/ptx/convert.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "numerics/bfloat16.h"
#include "numerics/float8.h"

namespace baleen::kernels::linear_body {

__device__ __forceinline__ float4 add(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/// Sum of the partial sums of all blocks of the cluster, as a balanced tree in
/// block order.
__device__ __forceinline__ float4 tree_sum(const float4* first, int distance, int cluster) {
  float4 sum = first[0];
  if (cluster >= 2) {
    sum = add(sum, first[distance]);
  }
  if (cluster >= 4) {
    sum = add(sum, add(first[2 * distance], first[3 * distance]));
  }
  if (cluster >= 8) {
    const float4 left = add(first[4 * distance], first[5 * distance]);
    const float4 right = add(first[6 * distance], first[7 * distance]);
    sum = add(sum, add(left, right));
  }
  return sum;
}

/// `value` as stored, rounded by the instruction (of a NaN it makes the
/// canonical one).
template <class Stored>
__device__ __forceinline__ Stored stored(float value) {
  if constexpr (sizeof(Stored) == 4) {
    return value;
  } else {
    return static_cast<Stored>(ptx::pack_bf16(value, 0.0F));
  }
}

/// Stores one output of one token.
__device__ __forceinline__ void store_output(const LinearDeviceTask& task,
                                             int64_t token,
                                             int64_t row,
                                             float value) {
  const int64_t at = token * task.y_stride + row;
  if (task.output == LinearOutput::kFloat32) {
    static_cast<float*>(task.y)[at] = value;
  } else {
    static_cast<uint16_t*>(task.y)[at] = stored<uint16_t>(value);
  }
}

/// `value`: rows r and r + 8 of tokens t and t + 1, as an accumulator fragment
/// holds them.
__device__ __forceinline__ void store_fragment(
    const LinearDeviceTask& task, int64_t token, bool second_token, int64_t row, float4 value) {
  store_output(task, token, row, value.x);
  store_output(task, token, row + 8, value.z);
  if (second_token) {
    store_output(task, token + 1, row, value.y);
    store_output(task, token + 1, row + 8, value.w);
  }
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFU, value, distance));
  }
  return value;
}

/// 128 outputs of up to two tokens by two warps: bf16, then e4m3 with one
/// scale. All consumer threads come here together; `active` tells those that
/// hold a value.
template <int kConsumers>
__device__ __forceinline__ void store_quantised(const LinearDeviceTask& task,
                                                float* exchange,
                                                bool active,
                                                int64_t token,
                                                bool second_token,
                                                int64_t row,
                                                int64_t scale_column,
                                                float4 value) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  value = make_float4(numerics::round_to_bf16(value.x),
                      numerics::round_to_bf16(value.y),
                      numerics::round_to_bf16(value.z),
                      numerics::round_to_bf16(value.w));
  const float first = warp_max(active ? fmaxf(fabsf(value.x), fabsf(value.z)) : 0.0F);
  const float second = warp_max(active ? fmaxf(fabsf(value.y), fabsf(value.w)) : 0.0F);
  ptx::named_barrier_sync(kConsumerBarrier, kConsumers);
  if (lane == 0) {
    exchange[2 * warp] = first;
    exchange[2 * warp + 1] = second;
  }
  ptx::named_barrier_sync(kConsumerBarrier, kConsumers);
  if (!active) {
    return;
  }
  const int partner = warp ^ 1;
  uint8_t* y = static_cast<uint8_t*>(task.y);
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    if (t == 1 && !second_token) {
      return;
    }
    const float amax = fmaxf(exchange[2 * warp + t], exchange[2 * partner + t]);
    const float scale = numerics::pow2up((amax > 1e-4F ? amax : 1e-4F) * numerics::kInverse448);
    const float inverse = 1.0F / scale;  // exact: a power of two
    const float upper = t == 0 ? value.x : value.y;
    const float lower = t == 0 ? value.z : value.w;
    y[(token + t) * task.y_stride + row] = numerics::e4m3_from_float(upper * inverse);
    y[(token + t) * task.y_stride + row + 8] = numerics::e4m3_from_float(lower * inverse);
    if (warp % 2 == 0 && lane == 0) {
      task.y_scales[(token + t) * (task.num_outputs / 128) + scale_column] =
          numerics::ue8m0_from_pow2(scale);
    }
  }
}

}  // namespace baleen::kernels::linear_body
