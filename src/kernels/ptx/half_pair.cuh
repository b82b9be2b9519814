#pragma once
// Pairs of FP16 numbers in one register.
//
//   const uint32_t pair = pack_half(low, high);   // round to nearest, beyond 65,504: infinity
//   const float2 values = unpack_half(pair);      // exact

#include <cstdint>

namespace baleen::kernels::ptx {

/// cvt.rn.f16x2.f32
__device__ __forceinline__ uint32_t pack_half(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

/// cvt.f32.f16 of both halves
__device__ __forceinline__ float2 unpack_half(uint32_t pair) {
  float2 values;
  asm("{\n"
      ".reg .b16 low, high;\n"
      "mov.b32 {low, high}, %2;\n"
      "cvt.f32.f16 %0, low;\n"
      "cvt.f32.f16 %1, high;\n"
      "}"
      : "=f"(values.x), "=f"(values.y)
      : "r"(pair));
  return values;
}

}  // namespace baleen::kernels::ptx
