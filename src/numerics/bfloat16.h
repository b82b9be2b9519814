#pragma once
// bf16 (1 sign, 8 exponent, 7 mantissa bits) and the decoder of IEEE half, as 16-bit codes. All
// conversions to bf16 round to nearest, ties to even. Pure functions, any thread.
//
//   uint16_t code = bf16_from_float(1.703125F);
//   float value = bf16_to_float(code);
//   float rounded = round_to_bf16(0.1F);   // the same value in float storage

#include <cstdint>

#include "numerics/host_device.h"

namespace baleen::numerics {

BALEEN_HOST_DEVICE inline float bf16_to_float(uint16_t code) {
  return float_from_bits(static_cast<uint32_t>(code) << 16);
}

/// A NaN stays a NaN: its quiet bit is set, sign and upper payload are kept.
BALEEN_HOST_DEVICE inline uint16_t bf16_from_float(float value) {
  const uint32_t bits = float_bits(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) {
    return static_cast<uint16_t>((bits >> 16) | 0x40U);
  }
  return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

/// Rounds once, from the double: going through a rounded float could turn a value just beside a tie
/// into the tie itself. The float in between is therefore rounded to odd (towards zero, last bit
/// set when inexact), which keeps the side of the tie because it has 16 bits more than bf16.
BALEEN_HOST_DEVICE inline uint16_t bf16_from_double(double value) {
  const float nearest = static_cast<float>(value);
  const double back = static_cast<double>(nearest);
  if (back == value || value != value) {
    return bf16_from_float(nearest);
  }
  uint32_t bits = float_bits(nearest);
  const double magnitude = value < 0 ? -value : value;
  if ((back < 0 ? -back : back) > magnitude) {
    --bits;
  }
  return bf16_from_float(float_from_bits(bits | 1U));
}

BALEEN_HOST_DEVICE inline uint16_t bf16_from(float value) {
  return bf16_from_float(value);
}
BALEEN_HOST_DEVICE inline uint16_t bf16_from(double value) {
  return bf16_from_double(value);
}

/// The nearest bf16 value, in the storage type of the argument.
BALEEN_HOST_DEVICE inline float round_to_bf16(float value) {
  return bf16_to_float(bf16_from_float(value));
}
BALEEN_HOST_DEVICE inline double round_to_bf16(double value) {
  return static_cast<double>(bf16_to_float(bf16_from_double(value)));
}

/// IEEE half (1-5-10) to float, exact for every code.
BALEEN_HOST_DEVICE inline float half_to_float(uint16_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x8000U) << 16;
  const uint32_t exponent = (code >> 10) & 0x1FU;
  const uint32_t mantissa = code & 0x3FFU;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, a normal float
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return float_from_bits(float_bits(magnitude) | sign);
  }
  const uint32_t biased = exponent == 0x1FU ? 0xFFU : exponent + 112U;
  return float_from_bits(sign | (biased << 23) | (mantissa << 13));
}

}  // namespace baleen::numerics
