#pragma once
// One warp finishes and stores one cached row: a 584-byte KV entry or an index key. Device
// functions, called by every writer (window rows of decode and prefill, compressed entries), so
// that one row has one bit pattern wherever it was made. All 32 lanes must call; nothing is
// synchronised beyond the warp.
//
//   float v[16];                                      // dims 16 * lane .. 16 * lane + 15
//   const float2 turn = rotation(position, frequencies[lane]);
//   finish_kv_entry(v, norm_weight, eps, turn);       // norm, rotation: bf16 values
//   store_kv_entry(pool, row, v);                     // e4m3 blocks of 64, bf16 rope dims
//
//   float k[4];                                       // dims 4 * lane .. 4 * lane + 3
//   finish_index_key(k, norm_weight, eps, turn);      // norm, rotation, Hadamard: bf16 values
//   store_index_key_entry(pool, row, k);
//
// Rounding points: input, normalised, rotated and transformed values are bf16. Oracle:
// cache_entry_oracle.h.

#include <cstdint>

#include "kernels/cache_entry/cache_entry_layout.h"
#include "kernels/cache_entry/row_math.cuh"
#include "kernels/ptx/convert.cuh"

namespace baleen::kernels {

inline constexpr int32_t kKvLaneDims = kKvDims / 32;        // 16
inline constexpr int32_t kIndexLaneDims = kIndexDims / 32;  // 4

/// RMSNorm of a row spread over a warp, 2^k neighbouring elements per lane. weight: f32 [32 *
/// kCount] in global or shared memory, 16-byte aligned.
template <int kCount>
__device__ inline void warp_rms_norm(float (&v)[kCount], const float* weight, float eps) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float g[kCount];
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(weight + lane * kCount + i);
    g[i] = four.x, g[i + 1] = four.y, g[i + 2] = four.z, g[i + 3] = four.w;
  }
  const float rho = inverse_rms(warp_sum(square_tree(v)), 32 * kCount, eps);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    v[i] = normalised(v[i], rho, g[i]);
  }
}

/// Turns the last 64 dims of a row; `turn` is that of pair `lane`. A row has 32 * kCount dims.
template <int kCount>
__device__ inline void warp_rotate(float (&v)[kCount], float2 turn) {
  constexpr int kRopeLanes = kKvRopeDims / kCount;  // the last lanes hold the rotated dims
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first = (lane - (32 - kRopeLanes)) * (kCount / 2);  // negative in the other lanes
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const float2 mine = make_float2(__shfl_sync(kWholeWarp, turn.x, first + i),
                                    __shfl_sync(kWholeWarp, turn.y, first + i));
    if (first >= 0) {
      rotate_pair(v[2 * i], v[2 * i + 1], mine);
    }
  }
}

/// v: bf16 values (the projection's or the pool's output), in place.
__device__ inline void finish_kv_entry(float (&v)[kKvLaneDims],
                                       const float* norm_weight,
                                       float eps,
                                       float2 turn) {
  warp_rms_norm(v, norm_weight, eps);
  warp_rotate(v, turn);
}

/// Quantises the first 448 dims in blocks of 64 and writes 576 + 8 bytes. `row` >= 0.
__device__ inline void store_kv_entry(const KvPoolView& pool,
                                      int32_t row,
                                      const float (&v)[kKvLaneDims]) {
  constexpr int kScaleLanes = kKvScaleDims / kKvLaneDims;  // 4 lanes share a scale
  constexpr int kNopeLanes = kKvNopeDims / kKvLaneDims;    // 28
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float scale = numerics::q8_scale(group_amax<kScaleLanes>(largest(v)));
  const uint32_t scale_code = numerics::ue8m0_from_pow2(scale);
  uint8_t* values = pool.base + kv_value_offset(pool, row);
  if (lane < kNopeLanes) {
    const float inverse = inverse_pow2(scale);
    uint32_t codes[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      codes[i] = ptx::pack_e4m3(v[4 * i] * inverse,
                                v[4 * i + 1] * inverse,
                                v[4 * i + 2] * inverse,
                                v[4 * i + 3] * inverse);
    }
    *reinterpret_cast<uint4*>(values + lane * kKvLaneDims) =
        make_uint4(codes[0], codes[1], codes[2], codes[3]);
  } else {
    uint32_t pairs[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      pairs[i] = (__float_as_uint(v[2 * i]) >> 16) | (__float_as_uint(v[2 * i + 1]) & 0xFFFF0000U);
    }
    auto* out = reinterpret_cast<uint4*>(values + kKvNopeDims + (lane - kNopeLanes) * 32);
    out[0] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    out[1] = make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
  }
  uint32_t low = 0;
  uint32_t high = 0;
#pragma unroll
  for (int i = 0; i < kKvScales; ++i) {
    const uint32_t code = __shfl_sync(kWholeWarp, scale_code, i * kScaleLanes);
    if (i < 4) {
      low |= code << (8 * i);
    } else {
      high |= code << (8 * (i - 4));
    }
  }
  if (lane == 0) {
    *reinterpret_cast<uint2*>(pool.base + kv_scale_offset(pool, row)) = make_uint2(low, high);
  }
}

/// y = H x / sqrt(128) in Sylvester order, rounded to bf16; distances 1, 2, 4 ... 64.
__device__ inline void warp_hadamard(float (&v)[kIndexLaneDims]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float a = __fadd_rn(v[0], v[1]);
  const float b = __fsub_rn(v[0], v[1]);
  const float c = __fadd_rn(v[2], v[3]);
  const float d = __fsub_rn(v[2], v[3]);
  v[0] = __fadd_rn(a, c);
  v[1] = __fadd_rn(b, d);
  v[2] = __fsub_rn(a, c);
  v[3] = __fsub_rn(b, d);
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
#pragma unroll
    for (int i = 0; i < kIndexLaneDims; ++i) {
      const float other = __shfl_xor_sync(kWholeWarp, v[i], distance);
      v[i] = (lane & distance) != 0 ? __fsub_rn(other, v[i]) : __fadd_rn(v[i], other);
    }
  }
#pragma unroll
  for (int i = 0; i < kIndexLaneDims; ++i) {
    v[i] = to_bf16(__fmul_rn(v[i], 0.08838834764831845F));  // 128^-1/2
  }
}

/// v: bf16 values of a pooled index key, in place.
__device__ inline void finish_index_key(float (&v)[kIndexLaneDims],
                                        const float* norm_weight,
                                        float eps,
                                        float2 turn) {
  warp_rms_norm(v, norm_weight, eps);
  warp_rotate(v, turn);
  warp_hadamard(v);
}

/// Quantises 128 dims by the pool's format and writes the values and 4 bytes of scale. `row` >= 0.
__device__ inline void store_index_key_entry(const IndexPoolView& pool,
                                             int32_t row,
                                             const float (&v)[kIndexLaneDims]) {
  constexpr int kGroupLanes = kIndexFp4Group / kIndexLaneDims;  // 8
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint8_t* values = pool.base + index_value_offset(pool, row);
  uint8_t* scales = pool.base + index_scale_offset(pool, row);
  const float amax = group_amax<kGroupLanes>(largest(v));
  if (pool.format == IndexKeyFormat::kFp8) {
    const float row_amax =
        fmaxf(fmaxf(__shfl_sync(kWholeWarp, amax, 0), __shfl_sync(kWholeWarp, amax, kGroupLanes)),
              fmaxf(__shfl_sync(kWholeWarp, amax, 2 * kGroupLanes),
                    __shfl_sync(kWholeWarp, amax, 3 * kGroupLanes)));
    const float scale = numerics::q8_scale(row_amax);
    const float inverse = inverse_pow2(scale);
    *reinterpret_cast<uint32_t*>(values + lane * 4) =
        ptx::pack_e4m3(v[0] * inverse, v[1] * inverse, v[2] * inverse, v[3] * inverse);
    if (lane == 0) {
      *reinterpret_cast<float*>(scales) = scale;
    }
    return;
  }
  const float scale = numerics::q4_scale(amax);
  const float inverse = inverse_pow2(scale);
  uint8_t codes[kIndexLaneDims];
#pragma unroll
  for (int i = 0; i < kIndexLaneDims; ++i) {
    codes[i] = numerics::e2m1_from_float(v[i] * inverse);
  }
  if (pool.format == IndexKeyFormat::kFp4) {
    *reinterpret_cast<uint16_t*>(values + lane * 2) = static_cast<uint16_t>(
        numerics::pack_e2m1(codes[0], codes[1]) | (numerics::pack_e2m1(codes[2], codes[3]) << 8));
    if (lane % kGroupLanes == 0) {
      scales[lane / kGroupLanes] = numerics::ue8m0_from_pow2(scale);
    }
    return;
  }
  // kFp4InFp8: S = largest group scale / 64. The quotient of the two scales is an exact power of
  // two.
  const float largest_scale = group_amax<32>(scale);
  const float inverse_largest = inverse_pow2(largest_scale);
  float x[kIndexLaneDims];
#pragma unroll
  for (int i = 0; i < kIndexLaneDims; ++i) {
    x[i] = numerics::e2m1_to_float(codes[i]) * (scale * inverse_largest * 64.0F);
  }
  *reinterpret_cast<uint32_t*>(values + lane * 4) = ptx::pack_e4m3(x[0], x[1], x[2], x[3]);
  if (lane == 0) {
    *reinterpret_cast<float*>(scales) = largest_scale * 0.015625F;
  }
}

}  // namespace baleen::kernels
