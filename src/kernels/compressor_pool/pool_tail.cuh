#pragma once
// From pooled channels to the stored entry: what every compressor kernel does once the sums are
// known. One warp per entry.
//
//   store_pooled_kv(params, pooled, frequency, end_position, destination);

#include "kernels/cache_entry/cache_entry.cuh"
#include "kernels/compressor_pool/compressor_pool.h"
#include "kernels/ptx/convert.cuh"

namespace baleen::kernels {

/// Position of the group's first token, at which the entry is rotated.
__device__ __forceinline__ int32_t first_position(int32_t end_position, int32_t ratio) {
  return end_position + 1 - ratio;
}

/// `pooled`: 512 bf16 in shared memory, 16-byte aligned. All 32 lanes call.
__device__ inline void store_pooled_kv(const CompressorPoolParams& params,
                                       const uint16_t* pooled,
                                       float frequency,  // of pair `lane`
                                       int32_t end_position,
                                       int32_t destination) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto* packed = reinterpret_cast<const uint4*>(pooled + lane * kKvLaneDims);
  float v[kKvLaneDims];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint4 eight = packed[half];
    const uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[8 * half + 2 * i] = ptx::low_bf16(pairs[i]);
      v[8 * half + 2 * i + 1] = ptx::high_bf16(pairs[i]);
    }
  }
  const int32_t ratio = compressor_ratio(params.kind);
  const float2 turn = rotation(first_position(end_position, ratio), frequency);
  finish_kv_entry(v, params.norm_weight, params.eps, turn);
  store_kv_entry(params.kv_pool, destination, v);
}

/// `v`: channels 4 * lane .. 4 * lane + 3 of the pooled key, FP32. All 32 lanes call.
__device__ inline void store_pooled_index_key(const CompressorPoolParams& params,
                                              float (&v)[kIndexLaneDims],
                                              float frequency,
                                              int32_t end_position,
                                              int32_t destination) {
#pragma unroll
  for (int i = 0; i < kIndexLaneDims; ++i) {
    v[i] = to_bf16(v[i]);
  }
  const int32_t ratio = compressor_ratio(params.kind);
  const float2 turn = rotation(first_position(end_position, ratio), frequency);
  finish_index_key(v, params.norm_weight, params.eps, turn);
  store_index_key_entry(params.index_pool, destination, v);
}

/// Entries of this launch, whatever the device says.
__device__ __forceinline__ int32_t entry_count(const CompressorPoolParams& params) {
  if (params.num_entries == nullptr) {
    return params.max_entries;
  }
  return min(max(*params.num_entries, 0), params.max_entries);
}

}  // namespace baleen::kernels
