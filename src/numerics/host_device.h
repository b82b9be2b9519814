#pragma once
// Marks the inline functions of this room as usable in host and in device code, and moves the bits
// of floating-point numbers to integers and back in both.

#include <cstdint>

#if defined(__CUDACC__)
#define BALEEN_HOST_DEVICE __host__ __device__
#else
#define BALEEN_HOST_DEVICE
#endif

namespace baleen::numerics {

BALEEN_HOST_DEVICE inline uint32_t float_bits(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return bits;
}

BALEEN_HOST_DEVICE inline float float_from_bits(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

BALEEN_HOST_DEVICE inline uint64_t double_bits(double value) {
  uint64_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return bits;
}

}  // namespace baleen::numerics
