#pragma once
// The arithmetic that every writer of cache rows shares: square sums, RMSNorm, rotation, rounding.
// Device functions of one warp; a row's bits depend on nothing but the row.
//
//   float2 turn = rotation(position, frequencies[lane]);   // lane = pair
//   float rho = inverse_rms(warp_sum(square_tree(values)), 512, eps);
//
// Order of a square sum: a balanced binary tree over neighbouring elements (x0 + x1) + (x2 + x3)
// ... of the separately rounded squares. A lane that holds 2^k neighbouring elements computes its
// subtree; warp_sum adds lanes at distance 1, 2, 4, 8, 16, which continues the same tree.

#include <cstdint>

#include "numerics/block_scale.h"

namespace baleen::kernels {

inline constexpr uint32_t kWholeWarp = 0xFFFFFFFFU;

/// Nearest bf16, ties to even, as a float; a NaN stays one.
__device__ inline float to_bf16(float value) {
  return numerics::round_to_bf16(value);
}

/// 1 / scale for a power of two in [2^-126, 2^127], exact.
__device__ inline float inverse_pow2(float scale) {
  const uint32_t exponent = __float_as_uint(scale) >> 23;
  return exponent == 254U ? __uint_as_float(0x00400000U) : __uint_as_float((254U - exponent) << 23);
}

/// Cosine and sine of the float32 product position * frequency. The product is reduced to
/// [-pi/4, pi/4] and both series are summed in double, so positions of a million tokens lose
/// nothing and the result is the float next to the exact value (fast-math sines are wrong from a
/// few thousand radians on).
__device__ inline float2 rotation(int32_t position, float frequency) {
  const double angle = static_cast<double>(__fmul_rn(static_cast<float>(position), frequency));
  const double quarter = rint(angle * 0.63661977236758134308);  // 2 / pi
  double r = fma(-quarter, 1.5707963267948965580, angle);       // pi / 2, high part
  r = fma(-quarter, 6.1232339957367660359e-17, r);              // pi / 2, low part
  const double z = r * r;
  double sine = -1.0 / 39916800.0;  // Taylor: the first term left out is below 1e-11
  sine = fma(sine, z, 1.0 / 362880.0);
  sine = fma(sine, z, -1.0 / 5040.0);
  sine = fma(sine, z, 1.0 / 120.0);
  sine = fma(sine, z, -1.0 / 6.0);
  sine = fma(sine * z, r, r);
  double cosine = 1.0 / 479001600.0;
  cosine = fma(cosine, z, -1.0 / 3628800.0);
  cosine = fma(cosine, z, 1.0 / 40320.0);
  cosine = fma(cosine, z, -1.0 / 720.0);
  cosine = fma(cosine, z, 1.0 / 24.0);
  cosine = fma(cosine, z, -0.5);
  cosine = fma(cosine, z, 1.0);
  const int32_t quadrant = static_cast<int32_t>(quarter) & 3;
  const float x = static_cast<float>((quadrant & 1) != 0 ? sine : cosine);
  const float y = static_cast<float>((quadrant & 1) != 0 ? cosine : sine);
  return make_float2(quadrant == 1 || quadrant == 2 ? -x : x, quadrant >= 2 ? -y : y);
}

/// (a, b) turned by (cos, sin), rounded to bf16: two products and one sum, each rounded.
__device__ inline void rotate_pair(float& a, float& b, float2 turn) {
  const float x = __fsub_rn(__fmul_rn(a, turn.x), __fmul_rn(b, turn.y));
  const float y = __fadd_rn(__fmul_rn(a, turn.y), __fmul_rn(b, turn.x));
  a = to_bf16(x);
  b = to_bf16(y);
}

/// Tree sum of the squares of 2^k neighbouring elements, from kBegin on. By recursion: the compiler
/// does not unroll a loop that halves its bound, and would put the partial sums into local memory.
template <int kCount, int kBegin = 0, int kSize>
__device__ __forceinline__ float square_tree(const float (&values)[kSize]) {
  static_assert((kCount & (kCount - 1)) == 0 && kBegin + kCount <= kSize);
  if constexpr (kCount == 1) {
    return __fmul_rn(values[kBegin], values[kBegin]);
  } else {
    return __fadd_rn(square_tree<kCount / 2, kBegin>(values),
                     square_tree<kCount / 2, kBegin + kCount / 2>(values));
  }
}
template <int kSize>
__device__ __forceinline__ float square_tree(const float (&values)[kSize]) {
  return square_tree<kSize, 0>(values);
}

/// Sum over a warp, every lane with the same bits. Addition commutes, so the butterfly is the tree.
__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    value = __fadd_rn(value, __shfl_xor_sync(kWholeWarp, value, distance));
  }
  return value;
}

__device__ __forceinline__ float inverse_rms(float square_sum, int32_t width, float eps) {
  // Multiplying by a power of two is the exact quotient, without the division's latency.
  const bool power_of_two = (width & (width - 1)) == 0;
  const float mean = power_of_two ? __fmul_rn(square_sum, 1.0F / static_cast<float>(width))
                                  : __fdiv_rn(square_sum, static_cast<float>(width));
  return __fdiv_rn(1.0F, __fsqrt_rn(__fadd_rn(mean, eps)));
}

/// One element of RMSNorm, rounded to bf16: g * (x * rho).
__device__ inline float normalised(float x, float rho, float weight) {
  return to_bf16(__fmul_rn(weight, __fmul_rn(x, rho)));
}

/// Largest magnitude of a group of 2^k neighbouring lanes; NaN takes no part.
template <int kLanes>
__device__ inline float group_amax(float amax) {
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) {
    amax = fmaxf(amax, __shfl_xor_sync(kWholeWarp, amax, distance));
  }
  return amax;
}

template <int kCount>
__device__ inline float largest(const float (&values)[kCount]) {
  float amax = 0.0F;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    amax = fmaxf(amax, fabsf(values[i]));
  }
  return amax;
}

}  // namespace baleen::kernels
