#pragma once
// Packed conversions between FP32, bf16, f16 and e4m3, one wrapper per instruction. Two values
// share a 32- or 16-bit register; the first named value lies in the low half.

#include <cstdint>

namespace baleen::kernels::ptx {

/// cvt.rn.bf16x2.f32: round to nearest even.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

/// cvt.rn.f16x2.f32: round to nearest even; beyond 65,504 infinite.
__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

/// Both halves of a pair of f16, exact.
__device__ __forceinline__ float2 unpack_f16(uint32_t packed) {
  float2 value;
  asm("{\n"
      ".reg .f16 low, high;\n"
      "mov.b32 {low, high}, %2;\n"
      "cvt.f32.f16 %0, low;\n"
      "cvt.f32.f16 %1, high;\n"
      "}"
      : "=f"(value.x), "=f"(value.y)
      : "r"(packed));
  return value;
}

__device__ __forceinline__ float low_bf16(uint32_t packed) {
  return __uint_as_float(packed << 16);
}

__device__ __forceinline__ float high_bf16(uint32_t packed) {
  return __uint_as_float(packed & 0xFFFF0000U);
}

/// cvt.rn.satfinite.e4m3x2.f32: round to nearest even, clamps to +-448; NaN stays NaN.
__device__ __forceinline__ uint16_t pack_e4m3(float low, float high) {
  uint16_t packed;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
  return packed;
}

/// Four e4m3 codes in memory order.
__device__ __forceinline__ uint32_t pack_e4m3(float a, float b, float c, float d) {
  return static_cast<uint32_t>(pack_e4m3(a, b)) | (static_cast<uint32_t>(pack_e4m3(c, d)) << 16);
}

}  // namespace baleen::kernels::ptx
