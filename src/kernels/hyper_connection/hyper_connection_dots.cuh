#pragma once
// The mixing product of the cluster kernel: partial dots of one warp with eight rows of fn in
// registers, and the sums over its lanes. Half a warp has four of the rows; a lane has four columns
// of each stream. Device functions.
//
//   multiply_tokens<256>(fn, x, num_tokens, [&](int token, int row, float sum) { ... });

#include "kernels/cache_entry/row_math.cuh"
#include "kernels/hyper_connection/hyper_connection.h"
#include "kernels/ptx/convert.cuh"

namespace baleen::kernels {

inline constexpr int kRowsPerWarp = 8;
inline constexpr int kRowsPerLane = 4;

template <int kCount, int kBegin = 0, int kSize>
__device__ __forceinline__ float tree_sum(const float (&values)[kSize]) {
  if constexpr (kCount == 1) {
    return values[kBegin];
  } else {
    return __fadd_rn(tree_sum<kCount / 2, kBegin>(values),
                     tree_sum<kCount / 2, kBegin + kCount / 2>(values));
  }
}

/// Sums kCount values over half a warp; lane l is left with value l * kCount / 16 of the list.
/// Every value takes the same tree (distances 8 to 1), whatever kCount is.
template <int kCount, int kDistance = 8, int kSize>
__device__ __forceinline__ float scatter_sums(float (&values)[kSize]) {
  if constexpr (kDistance == 0) {
    return values[0];
  } else if constexpr (kCount == 1) {
    values[0] = __fadd_rn(values[0], __shfl_xor_sync(kWholeWarp, values[0], kDistance));
    return scatter_sums<1, kDistance / 2>(values);
  } else {
    constexpr int kHalf = kCount / 2;
    const bool upper = (threadIdx.x & kDistance) != 0;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float keep = upper ? values[i + kHalf] : values[i];
      const float send = upper ? values[i] : values[i + kHalf];
      values[i] = __fadd_rn(keep, __shfl_xor_sync(kWholeWarp, send, kDistance));
    }
    return scatter_sums<kHalf, kDistance / 2>(values);
  }
}

// The tile of new streams holds float32 where there is room (nothing to unpack in the product),
// else bf16; the values are bf16 either way.
__device__ __forceinline__ float4 load_four(const float* tile) {
  return *reinterpret_cast<const float4*>(tile);
}
__device__ __forceinline__ float4 load_four(const uint16_t* tile) {
  const uint2 packed = *reinterpret_cast<const uint2*>(tile);
  return make_float4(ptx::low_bf16(packed.x),
                     ptx::high_bf16(packed.x),
                     ptx::low_bf16(packed.y),
                     ptx::high_bf16(packed.y));
}
__device__ __forceinline__ void store_four(float* tile, uint2 packed) {
  *reinterpret_cast<float4*>(tile) = load_four(reinterpret_cast<const uint16_t*>(&packed));
}
__device__ __forceinline__ void store_four(uint16_t* tile, uint2 packed) {
  *reinterpret_cast<uint2*>(tile) = packed;
}

/// Four columns of every stream of one token.
template <int kColumns, class Element>
__device__ __forceinline__ void load_token(const Element* x, float4 (&out)[kHcStreams]) {
#pragma unroll
  for (int v = 0; v < kHcStreams; ++v) {
    out[v] = load_four(x + v * kColumns);
  }
}

__device__ __forceinline__ void multiply(const float4 (&fn)[kRowsPerLane][kHcStreams],
                                         const float4 (&x)[kHcStreams],
                                         float* acc) {
#pragma unroll
  for (int r = 0; r < kRowsPerLane; ++r) {
    acc[r] = __fmul_rn(fn[r][0].x, x[0].x);
  }
#pragma unroll
  for (int v = 0; v < kHcStreams; ++v) {
#pragma unroll
    for (int r = 0; r < kRowsPerLane; ++r) {
      acc[r] = v == 0 ? acc[r] : __fmaf_rn(fn[r][v].x, x[v].x, acc[r]);
    }
#pragma unroll
    for (int r = 0; r < kRowsPerLane; ++r) {
      acc[r] = __fmaf_rn(fn[r][v].y, x[v].y, acc[r]);
    }
#pragma unroll
    for (int r = 0; r < kRowsPerLane; ++r) {
      acc[r] = __fmaf_rn(fn[r][v].z, x[v].z, acc[r]);
    }
#pragma unroll
    for (int r = 0; r < kRowsPerLane; ++r) {
      acc[r] = __fmaf_rn(fn[r][v].w, x[v].w, acc[r]);
    }
  }
}

/// Dots of `count` tokens with the lane's four rows over its four columns of every stream, summed
/// over half a warp. x: the lane's columns of token 0, stream 0, in a tile of kColumns columns.
/// `put` gets (token, row of the lane's four, sum) from one lane each. The next token's values are
/// requested while one is multiplied.
template <int kColumns, class Element, class Put>
__device__ __forceinline__ void multiply_tokens(const float4 (&fn)[kRowsPerLane][kHcStreams],
                                                const Element* x,
                                                int count,
                                                Put put) {
  constexpr int kToken = kHcStreams * kColumns;
  const int lane = static_cast<int>(threadIdx.x) % 16;
  float4 even[kHcStreams];
  float4 odd[kHcStreams];
  load_token<kColumns>(x, even);
  int t = 0;
#pragma unroll 1
  for (; t + 4 <= count; t += 4) {
    float acc[4 * kRowsPerLane];
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      load_token<kColumns>(x + (t + i + 1) * kToken, odd);
      multiply(fn, even, acc + i * kRowsPerLane);
      const int next = t + i + 2 < count ? t + i + 2 : t;
      load_token<kColumns>(x + next * kToken, even);
      multiply(fn, odd, acc + (i + 1) * kRowsPerLane);
    }
    put(t + lane / 4, lane % 4, scatter_sums<4 * kRowsPerLane>(acc));
  }
  if (t + 2 <= count) {
    float acc[2 * kRowsPerLane];
    load_token<kColumns>(x + (t + 1) * kToken, odd);
    multiply(fn, even, acc);
    if (t + 2 < count) {
      load_token<kColumns>(x + (t + 2) * kToken, even);
    }
    multiply(fn, odd, acc + kRowsPerLane);
    const float sum = scatter_sums<2 * kRowsPerLane>(acc);
    if (lane % 2 == 0) {
      put(t + lane / 8, lane / 2 % 4, sum);
    }
    t += 2;
  }
  if (t < count) {
    float acc[kRowsPerLane];
    multiply(fn, even, acc);
    const float sum = scatter_sums<kRowsPerLane>(acc);
    if (lane % 4 == 0) {
      put(t, lane / 4, sum);
    }
  }
}

}  // namespace baleen::kernels
