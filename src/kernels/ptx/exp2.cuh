#pragma once
// The hardware's exponential: 2^x with a relative error below 2^-22, results below 2^-126 are 0.
// For softmax weights in FP32; what reports log-probabilities or compares with doubles uses more.
//
//   float weight = exp2_fast((score - maximum) * kLog2E);

namespace baleen::kernels::ptx {

inline constexpr float kLog2E = 1.4426950408889634F;

/// ex2.approx.ftz.f32: -inf gives 0, NaN stays NaN.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace baleen::kernels::ptx
