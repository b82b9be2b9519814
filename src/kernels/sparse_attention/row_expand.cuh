#pragma once
// Expands e4m3 codes with a UE8M0 scale to bf16, four codes at a time. Device functions, one
// thread.
//
//   RowScale scale = row_scale(byte);
//   BfQuad quad = expand_e4m3(codes, scale.multiplier);   // even = codes 0 and 2, odd = 1 and 3
//
// A code's sign goes to bit 15 and its other seven bits to bits 4-10 of a bf16: the same number
// with an exponent 120 too low, subnormals included. One packed product with 2^(120 + byte - 127)
// repairs that and applies the scale; it is exact unless the result leaves the range of normal
// bf16.

#include <cstdint>

#include "kernels/ptx/multiply_bf16.cuh"

namespace baleen::kernels {

struct BfQuad {
  uint32_t even;  // code 0 low, code 2 high
  uint32_t odd;   // code 1 low, code 3 high
};

// 2^(byte - 7) is a bf16 up to this scale byte (2^7); larger scales need a second product.
inline constexpr uint32_t kLargestOneStepScale = 134;

struct RowScale {
  uint32_t multiplier;  // bf16 pair
  uint32_t rest;        // bf16 pair: 1, or what the first product could not carry
};

/// Of a scale byte up to kLargestOneStepScale.
__device__ __forceinline__ uint32_t one_step_multiplier(uint32_t byte) {
  return (byte + 120U) * 0x00800080U;
}

__device__ __forceinline__ RowScale row_scale(uint32_t byte) {
  const uint32_t step = min(byte, kLargestOneStepScale);
  return {one_step_multiplier(step), (byte - step + 127U) * 0x00800080U};
}

/// The eight scale bytes, none above kLargestOneStepScale.
__device__ __forceinline__ uint2 one_step_scales(uint2 scales) {
  constexpr uint32_t kLargest = kLargestOneStepScale * 0x01010101U;
  return make_uint2(__vminu4(scales.x, kLargest), __vminu4(scales.y, kLargest));
}

/// Whether any of the eight scale bytes needs the second product.
__device__ __forceinline__ bool needs_rest(uint2 scales) {
  return (__vcmpgtu4(scales.x, kLargestOneStepScale * 0x01010101U) |
          __vcmpgtu4(scales.y, kLargestOneStepScale * 0x01010101U)) != 0;
}

__device__ __forceinline__ uint32_t scale_byte(uint2 scales, int block) {
  return ((block < 4 ? scales.x : scales.y) >> (8 * (block & 3))) & 0xFFU;
}

__device__ __forceinline__ BfQuad expand_e4m3(uint32_t codes, uint32_t multiplier) {
  constexpr uint32_t kSigns = 0x80008000U;
  constexpr uint32_t kRest = 0x07F007F0U;
  const uint32_t odd = (codes & kSigns) | ((codes >> 4) & kRest);
  const uint32_t even = ((codes << 8) & kSigns) | ((codes << 4) & kRest);
  return {ptx::multiply_bf16(even, multiplier), ptx::multiply_bf16(odd, multiplier)};
}

/// Dim at place `place` of a block of 64 as the expansion leaves it (even and odd codes apart).
__device__ __forceinline__ int nope_dim_at(int place) {
  const int i = place & 3;
  return (place & ~3) | ((i & 1) << 1) | (i >> 1);
}

}  // namespace baleen::kernels
