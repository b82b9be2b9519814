#pragma once
// What one warp does for one token: the roles latent, kv and weights. Device functions, shared by
// the fused and the portable form.
//
//   latent_token<4>(params, token, weight);   // 4 chunks of 256: width 1024

#include "kernels/after_projection/after_projection.h"
#include "kernels/cache_entry/cache_entry.cuh"
#include "kernels/ptx/convert.cuh"
#include "kernels/ptx/pdl.cuh"
#include "kernels/ptx/read_only_load.cuh"

namespace baleen::kernels {

inline constexpr int kLatentChunk = 256;  // elements of a warp's load: eight per lane

__device__ __forceinline__ void unpack_bf16(uint4 packed, float* out) {
  const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = ptx::low_bf16(words[i]);
    out[2 * i + 1] = ptx::high_bf16(words[i]);
  }
}

__device__ __forceinline__ void count_nan(uint32_t* counter, bool nan) {
  const bool any = __any_sync(kWholeWarp, nan);
  if (any && counter != nullptr && threadIdx.x % 32 == 0) {
    atomicAdd(counter, 1U);
  }
}

/// kChunks * 256 elements. `wait`: the dependency wait comes after the weights are requested.
template <int kChunks>
__device__ __forceinline__ void latent_token(const AfterProjectionParams& params,
                                             int64_t token,
                                             bool wait) {
  const LatentRole& role = params.latent;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float g[kChunks][8];
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 four = ptx::load_static(role.weight + c * kLatentChunk + lane * 8 + half * 4);
      g[c][4 * half] = four.x, g[c][4 * half + 1] = four.y;
      g[c][4 * half + 2] = four.z, g[c][4 * half + 3] = four.w;
    }
  }
  if (wait) {
    ptx::wait_for_predecessor();
  }
  const uint16_t* row = role.rows + token * role.stride;
  uint4 packed[kChunks];
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    packed[c] = *reinterpret_cast<const uint4*>(row + c * kLatentChunk + lane * 8);
  }
  float v[kChunks][8];
  float sum = 0.0F;
  bool nan = false;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    unpack_bf16(packed[c], v[c]);
    const float square = square_tree(v[c]);
    sum = c == 0 ? square : __fadd_rn(sum, square);
    nan = nan || isnan(square);
  }
  count_nan(params.nan_rows, nan);
  const float rho = inverse_rms(warp_sum(sum), kChunks * kLatentChunk, params.eps);
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pairs[i] = ptx::pack_bf16(__fmul_rn(g[c][2 * i], __fmul_rn(v[c][2 * i], rho)),
                                __fmul_rn(g[c][2 * i + 1], __fmul_rn(v[c][2 * i + 1], rho)));
      v[c][2 * i] = ptx::low_bf16(pairs[i]);
      v[c][2 * i + 1] = ptx::high_bf16(pairs[i]);
    }
    const int64_t at = token * (kChunks * kLatentChunk) + c * kLatentChunk + lane * 8;
    if (role.normalised != nullptr) {
      *reinterpret_cast<uint4*>(role.normalised + at) =
          make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
    // 16 lanes share a block of 128.
    const float scale = numerics::q8_scale(group_amax<kLatentQuantDims / 8>(largest(v[c])));
    const float inverse = inverse_pow2(scale);
    *reinterpret_cast<uint2*>(role.codes + at) = make_uint2(
        ptx::pack_e4m3(v[c][0] * inverse, v[c][1] * inverse, v[c][2] * inverse, v[c][3] * inverse),
        ptx::pack_e4m3(v[c][4] * inverse, v[c][5] * inverse, v[c][6] * inverse, v[c][7] * inverse));
    if (lane % 16 == 0) {
      role.scales[at / kLatentQuantDims] = numerics::ue8m0_from_pow2(scale);
    }
  }
}

__device__ __forceinline__ void kv_token(const AfterProjectionParams& params,
                                         int64_t token,
                                         bool wait) {
  const KvRole& role = params.kv;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float frequency = __ldg(role.frequencies + lane);
  if (wait) {
    ptx::wait_for_predecessor();
  }
  const int32_t position = role.positions[token];
  const int32_t slot = role.slots[token];
  const auto* row =
      reinterpret_cast<const uint4*>(role.rows + token * role.stride + lane * kKvLaneDims);
  const uint4 low = row[0];
  const uint4 high = row[1];
  float v[kKvLaneDims];
  unpack_bf16(low, v);
  unpack_bf16(high, v + 8);
  bool nan = false;
#pragma unroll
  for (int i = 0; i < kKvLaneDims; ++i) {
    nan = nan || isnan(v[i]);
  }
  const float2 turn = rotation(position, frequency);
  finish_kv_entry(v, role.weight, params.eps, turn);
  if (slot >= 0) {
    count_nan(params.nan_rows, nan);
    store_kv_entry(role.pool, slot, v);
  }
}

__device__ __forceinline__ void index_weights_token(const AfterProjectionParams& params,
                                                    int64_t token,
                                                    bool wait) {
  const IndexWeightsRole& role = params.index_weights;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (wait) {
    ptx::wait_for_predecessor();
  }
  const uint32_t pair =
      *reinterpret_cast<const uint32_t*>(role.rows + token * role.stride + 2 * lane);
  const uint32_t product = ptx::pack_bf16(__fmul_rn(ptx::low_bf16(pair), role.constant),
                                          __fmul_rn(ptx::high_bf16(pair), role.constant));
  *reinterpret_cast<float2*>(role.out + token * kIndexHeads + 2 * lane) =
      make_float2(ptx::low_bf16(product), ptx::high_bf16(product));
}

}  // namespace baleen::kernels
