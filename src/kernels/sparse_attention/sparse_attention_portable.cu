// Attention on any GPU: one block per (query, head), rows one after another in slot order. Obvious
// rather than fast; the reference for the tiled kernel on shapes too large for the host oracle.

#include <cstdint>

#include "base/check.h"
#include "device/launch.h"
#include "kernels/cache_entry/row_math.cuh"
#include "kernels/sparse_attention/row_source.cuh"
#include "kernels/sparse_attention/sparse_attention.h"
#include "numerics/bfloat16.h"
#include "numerics/float8.h"

namespace baleen::kernels {
namespace {

constexpr int kThreads = 128;
constexpr int kDimsPerThread = kKvDims / kThreads;  // dims thread + 128 * i

__device__ float row_value(const RowAddress& at, int dim) {
  if (dim >= kKvNopeDims) {
    const auto* rope = reinterpret_cast<const uint16_t*>(at.values + kKvNopeDims);
    return numerics::bf16_to_float(rope[dim - kKvNopeDims]);
  }
  const uint8_t code = at.values[dim];
  const float value =
      (code & 0x7F) == 0x7F ? (code >= 0x80 ? -480.0F : 480.0F) : numerics::e4m3_to_float(code);
  return numerics::round_to_bf16(ldexpf(value, static_cast<int>(at.scales[dim / 64]) - 127));
}

__device__ float block_sum(float value, float* scratch) {
  value = warp_sum(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    scratch[threadIdx.x / 32] = value;
  }
  __syncthreads();
  return (scratch[0] + scratch[1]) + (scratch[2] + scratch[3]);
}

__global__ void __launch_bounds__(kThreads) portable_kernel(const SparseAttentionParams params) {
  __shared__ float scratch[kThreads / 32];
  __shared__ float turned[kKvRopeDims];
  const auto head = static_cast<int32_t>(blockIdx.x);
  const auto query = static_cast<int32_t>(blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t place = static_cast<int64_t>(query) * params.heads + head;
  float q[kDimsPerThread];
  float o[kDimsPerThread] = {};
  for (int i = 0; i < kDimsPerThread; ++i) {
    q[i] = numerics::bf16_to_float(params.q[place * kKvDims + thread + kThreads * i]);
  }
  float maximum = -INFINITY;
  float sum = 0;
  for (int s = 0; s < 2; ++s) {
    const SparseAttentionSource& source = s == 0 ? params.first : params.second;
    const int32_t length = source_length(source, query);
    for (int32_t slot = 0; slot < length; ++slot) {
      const int32_t row = source_row(source, query, slot, length);
      if (row < 0) {
        continue;
      }
      const RowAddress at = row_address(source.pool, row);
      float values[kDimsPerThread];
      float dot = 0;
      for (int i = 0; i < kDimsPerThread; ++i) {
        values[i] = row_value(at, thread + kThreads * i);
        dot = fmaf(q[i], values[i], dot);
      }
      const float score = block_sum(dot, scratch) * params.scale;
      const float now = fmaxf(maximum, score);
      const float factor = maximum == now ? 1.0F : expf(maximum - now);
      const float weight = expf(score - now);
      const float rounded = numerics::round_to_bf16(weight);
      for (int i = 0; i < kDimsPerThread; ++i) {
        o[i] = fmaf(o[i], factor, rounded * values[i]);
      }
      sum = fmaf(sum, factor, weight);
      maximum = now;
    }
  }
  const float sink = params.sink != nullptr ? params.sink[head] : -INFINITY;
  const bool empty = maximum == -INFINITY;
  const float top = fmaxf(maximum, sink);
  const float weight = empty || sink == INFINITY ? 0.0F : expf(maximum - top);
  const float denominator = sum * weight + (sink == -INFINITY ? 0.0F : expf(sink - top));
  for (int i = 0; i < kDimsPerThread; ++i) {
    const int dim = thread + kThreads * i;
    float value = weight == 0.0F ? 0.0F : to_bf16(o[i] * (weight / denominator));
    if (params.positions != nullptr && dim >= kKvNopeDims) {
      turned[dim - kKvNopeDims] = value;
    }
    params.o[place * kKvDims + dim] = numerics::bf16_from_float(value);
  }
  __syncthreads();
  if (params.positions != nullptr && thread < kRopePairs) {
    const float2 turn = rotation(params.positions[query], params.frequencies[thread]);
    float a = turned[2 * thread];
    float b = turned[2 * thread + 1];
    rotate_pair(a, b, make_float2(turn.x, -turn.y));
    uint16_t* to = params.o + place * kKvDims + kKvNopeDims + 2 * thread;
    to[0] = numerics::bf16_from_float(a);
    to[1] = numerics::bf16_from_float(b);
  }
  if (thread == 0 && params.lse != nullptr) {
    params.lse[place] = empty ? -INFINITY : maximum + logf(sum);
  }
  if (thread == 0 && params.lse_with_sink != nullptr) {
    params.lse_with_sink[place] = empty || sink == INFINITY ? sink : top + logf(denominator);
  }
}

}  // namespace

void launch_sparse_attention_portable(const SparseAttentionParams& params,
                                      device::StreamHandle stream) {
  BALEEN_CHECK(params.heads > 0 && params.num_queries >= 0 && params.num_queries <= 65535,
               "heads={} num_queries={}",
               params.heads,
               params.num_queries);
  if (params.num_queries == 0) {
    return;
  }
  device::launch(
      stream,
      {.grid = dim3(static_cast<unsigned>(params.heads), static_cast<unsigned>(params.num_queries)),
       .block = dim3(kThreads)},
      portable_kernel,
      params);
}

}  // namespace baleen::kernels
