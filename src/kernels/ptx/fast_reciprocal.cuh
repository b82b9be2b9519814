#pragma once
// rcp.approx.ftz.f32: 1 / x within one unit in the last place for normal x, deterministic.
//
//   float r = ptx::fast_reciprocal(sum);

namespace baleen::kernels::ptx {

__device__ __forceinline__ float fast_reciprocal(float value) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

}  // namespace baleen::kernels::ptx
