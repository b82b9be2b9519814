#pragma once
// E2M1, the 4-bit format of routed experts and index keys: sign, 2 exponent bits, 1 mantissa bit.
// Two codes share a byte, the even element in the low nibble. Pure functions, any thread.
//
//   uint8_t byte = pack_e2m1(e2m1_from_float(x0 / s), e2m1_from_float(x1 / s));
//   float x1 = e2m1_to_float(high_nibble(byte)) * s;

#include <cstdint>

#include "numerics/host_device.h"

namespace baleen::numerics {

inline constexpr float kE2m1Max = 6.0F;
inline constexpr float kInverse6 = 1.0F / 6.0F;  // float32(1/6), as the scale rule uses it
inline constexpr float kE2m1LeastAmax = 6.0F * 0x1p-126F;  // keeps the scale a normal float

/// Magnitudes of codes 0 to 7: 0, 0.5, 1, 1.5, 2, 3, 4, 6; bit 3 is the sign. Upper bits are
/// ignored.
BALEEN_HOST_DEVICE inline float e2m1_to_float(uint8_t code) {
  const uint32_t magnitude = code & 7U;
  // Twice the value is 0, 1, 2, 3, 4, 6, 8, 12: (2 + mantissa) << (exponent - 1), or the mantissa.
  const uint32_t exponent = magnitude >> 1;
  const uint32_t mantissa = magnitude & 1U;
  const uint32_t twice = exponent == 0 ? mantissa : (2U + mantissa) << (exponent - 1U);
  const float value = static_cast<float>(twice) * 0.5F;
  return (code & 8U) != 0 ? -value : value;
}

/// Clamps to +-6, then rounds to nearest, ties to the even code. A negative number that rounds to
/// zero keeps its sign (code 8). There is no NaN code: a NaN gives code 0.
template <class T>
BALEEN_HOST_DEVICE inline uint8_t e2m1_from(T value) {
  const bool negative = value < T(0);
  const T magnitude = negative ? -value : value;
  uint32_t code = 0;
  // Borders between neighbours; the tie belongs to the even code of the two.
  code += magnitude > T(0.25) ? 1U : 0U;
  code += magnitude >= T(0.75) ? 1U : 0U;
  code += magnitude > T(1.25) ? 1U : 0U;
  code += magnitude >= T(1.75) ? 1U : 0U;
  code += magnitude > T(2.5) ? 1U : 0U;
  code += magnitude >= T(3.5) ? 1U : 0U;
  code += magnitude > T(5) ? 1U : 0U;
  return static_cast<uint8_t>(code | (negative ? 8U : 0U));
}
BALEEN_HOST_DEVICE inline uint8_t e2m1_from_float(float value) {
  return e2m1_from(value);
}

BALEEN_HOST_DEVICE inline uint8_t pack_e2m1(uint8_t even_code, uint8_t odd_code) {
  return static_cast<uint8_t>((even_code & 15U) | ((odd_code & 15U) << 4));
}
BALEEN_HOST_DEVICE inline uint8_t low_nibble(uint8_t byte) {
  return byte & 15U;
}
BALEEN_HOST_DEVICE inline uint8_t high_nibble(uint8_t byte) {
  return static_cast<uint8_t>(byte >> 4);
}

}  // namespace baleen::numerics
