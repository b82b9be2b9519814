#pragma once
// The 8-bit formats: E4M3 (fn) for values and UE8M0 for scales, with the power-of-two scale of a
// block. Pure functions, any thread.
//
//   uint8_t scale = ue8m0_from_pow2(pow2up(amax * kInverse448));
//   uint8_t code = e4m3_from_float(x / ue8m0_to_float(scale));
//   float value = e4m3_to_float(code) * ue8m0_to_float(scale);

#include <cmath>
#include <cstdint>

#include "numerics/host_device.h"

namespace baleen::numerics {

inline constexpr float kE4m3Max = 448.0F;
inline constexpr uint8_t kE4m3Nan = 0x7F;
inline constexpr float kInverse448 = 1.0F / 448.0F;  // float32(1/448), as the scale rule uses it

/// 1-4-3 bits, bias 7, subnormals of 2^-9, no infinity, 0x7F and 0xFF are NaN.
BALEEN_HOST_DEVICE inline float e4m3_to_float(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80U) << 24;
  const uint32_t magnitude = code & 0x7FU;
  if (magnitude == 0x7FU) {
    return float_from_bits(sign | 0x7FC00000U);
  }
  if (magnitude < 8U) {
    return float_from_bits(float_bits(static_cast<float>(magnitude) * 0x1p-9F) | sign);
  }
  return float_from_bits(sign | ((magnitude << 20) + (120U << 23)));
}

/// Clamps to +-448 (infinities too), then rounds to nearest, ties to even. NaN gives NaN.
BALEEN_HOST_DEVICE inline uint8_t e4m3_from_float(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t sign = (bits >> 24) & 0x80U;
  uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) {
    return static_cast<uint8_t>(sign | kE4m3Nan);
  }
  const float absolute = float_from_bits(magnitude);
  if (absolute >= kE4m3Max) {
    return static_cast<uint8_t>(sign | 0x7EU);
  }
  if (absolute < 0x1p-6F) {  // 8 quanta of 2^-9 are the smallest normal number, code 0x08
    return static_cast<uint8_t>(sign | static_cast<uint32_t>(rintf(absolute * 0x1p9F)));
  }
  magnitude += 0x7FFFFU + ((magnitude >> 20) & 1U);
  return static_cast<uint8_t>(sign | ((magnitude >> 20) - (120U << 3)));
}

/// As e4m3_from_float, rounded once from the double.
BALEEN_HOST_DEVICE inline uint8_t e4m3_from_double(double value) {
  const uint64_t bits = double_bits(value);
  const auto sign = static_cast<uint32_t>(bits >> 56) & 0x80U;
  uint64_t magnitude = bits & 0x7FFFFFFFFFFFFFFFULL;
  if (magnitude > 0x7FF0000000000000ULL) {
    return static_cast<uint8_t>(sign | kE4m3Nan);
  }
  const double absolute = value < 0 ? -value : value;
  if (absolute >= 448.0) {
    return static_cast<uint8_t>(sign | 0x7EU);
  }
  if (absolute < 0x1p-6) {
    return static_cast<uint8_t>(sign | static_cast<uint32_t>(rint(absolute * 0x1p9)));
  }
  magnitude += 0x0000FFFFFFFFFFFFULL + ((magnitude >> 49) & 1U);
  return static_cast<uint8_t>(sign | static_cast<uint32_t>((magnitude >> 49) - (1016ULL << 3)));
}

BALEEN_HOST_DEVICE inline uint8_t e4m3_from(float value) {
  return e4m3_from_float(value);
}
BALEEN_HOST_DEVICE inline uint8_t e4m3_from(double value) {
  return e4m3_from_double(value);
}

/// 2^(code-127); code 0 is the float32 subnormal 2^-127, 255 is NaN.
BALEEN_HOST_DEVICE inline float ue8m0_to_float(uint8_t code) {
  if (code == 0) {
    return float_from_bits(0x00400000U);
  }
  return code == 255 ? float_from_bits(0x7FC00000U)
                     : float_from_bits(static_cast<uint32_t>(code) << 23);
}

/// The code of a power of two in [2^-127, 2^127]; anything else is a programmer's error and gives
/// the code of the exponent field.
BALEEN_HOST_DEVICE inline uint8_t ue8m0_from_pow2(float power) {
  return static_cast<uint8_t>((float_bits(power) >> 23) & 0xFFU);
}

/// 2^ceil(log2 v) from the bits of a positive normal v, exact. Saturates at 2^127, so that an
/// infinite maximum still gives a finite scale.
BALEEN_HOST_DEVICE inline float pow2up(float value) {
  const uint32_t bits = float_bits(value) & 0x7FFFFFFFU;
  const uint32_t exponent = (bits >> 23) + ((bits & 0x7FFFFFU) != 0 ? 1U : 0U);
  return float_from_bits((exponent > 254U ? 254U : exponent) << 23);
}

}  // namespace baleen::numerics
