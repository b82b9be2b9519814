#pragma once
// From pooled channels to the stored entry: what every compressor kernel does once the sums are
// known. One warp per entry, or the warps of a block together; the bits are the same.
//
//   store_pooled_kv(params, pooled, frequency, end_position, destination);
//   store_pooled_kv_part<4>(params, v, frequency, end_position, destination, part, squares);

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

/// The same by kParts warps of a block, `part` of them this one: v holds its channels 4 * lane .. 4
/// * lane + 3, FP32. Their square sums go on the tree of warp_sum. `squares`: kParts floats in
/// shared memory, which nobody reads or writes otherwise. All threads of the block call.
template <int kParts>
__device__ inline void store_pooled_kv_part(const CompressorPoolParams& params,
                                            const float (&pooled)[4],
                                            float frequency,  // of pair `lane`
                                            int32_t end_position,
                                            int32_t destination,
                                            int part,
                                            float* squares) {
  static_assert(kParts == 4 && kKvDims == kParts * 128 && kKvScaleDims == 64);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int channel = part * 128 + lane * 4;
  const bool is_last = part == kParts - 1;  // its second half is rotated and has no scale
  const uint32_t low = ptx::pack_bf16(pooled[0], pooled[1]);
  const uint32_t high = ptx::pack_bf16(pooled[2], pooled[3]);
  float v[4] = {ptx::low_bf16(low), ptx::high_bf16(low), ptx::low_bf16(high), ptx::high_bf16(high)};
  const float square = warp_sum(square_tree(v));
  if (lane == 0) {
    squares[part] = square;
  }
  const float4 g = __ldg(reinterpret_cast<const float4*>(params.norm_weight + channel));
  float2 turn = {};
  if (is_last) {
    turn = rotation(first_position(end_position, compressor_ratio(params.kind)), frequency);
  }
  __syncthreads();
  const float4 all = *reinterpret_cast<const float4*>(squares);
  const float rho =
      inverse_rms(__fadd_rn(__fadd_rn(all.x, all.y), __fadd_rn(all.z, all.w)), kKvDims, params.eps);
  v[0] = normalised(v[0], rho, g.x), v[1] = normalised(v[1], rho, g.y);
  v[2] = normalised(v[2], rho, g.z), v[3] = normalised(v[3], rho, g.w);
  if (is_last) {
    warp_rotate(v, turn);
  }
  const float scale = numerics::q8_scale(group_amax<kKvScaleDims / 4>(largest(v)));
  const uint32_t code = numerics::ue8m0_from_pow2(scale);
  const uint32_t second = is_last ? 0U : __shfl_sync(kWholeWarp, code, kKvScaleDims / 4);
  const KvPoolView& pool = params.kv_pool;
  uint8_t* values = pool.base + kv_value_offset(pool, destination);
  if (channel < kKvNopeDims) {
    const float inverse = inverse_pow2(scale);
    *reinterpret_cast<uint32_t*>(values + channel) =
        ptx::pack_e4m3(v[0] * inverse, v[1] * inverse, v[2] * inverse, v[3] * inverse);
  } else {
    *reinterpret_cast<uint2*>(values + kKvNopeDims + 2 * (channel - kKvNopeDims)) =
        make_uint2((__float_as_uint(v[0]) >> 16) | (__float_as_uint(v[1]) & 0xFFFF0000U),
                   (__float_as_uint(v[2]) >> 16) | (__float_as_uint(v[3]) & 0xFFFF0000U));
  }
  if (lane == 0) {
    *reinterpret_cast<uint16_t*>(pool.base + kv_scale_offset(pool, destination) + 2 * part) =
        static_cast<uint16_t>(code | second << 8);
  }
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
