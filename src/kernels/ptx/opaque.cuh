#pragma once
// Hides from the compiler where a value came from, so that a loop keeps it in a register instead of
// computing it again from special registers and constants in every round. No instruction.
//
//   float* scales = arena.scales + row;
//   keep_in_register(scales);

#include <cstdint>

namespace baleen::kernels::ptx {

template <class T>
__device__ __forceinline__ void keep_in_register(T& value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  if constexpr (sizeof(T) == 4) {
    asm volatile("" : "+r"(value));
  } else {
    asm volatile("" : "+l"(value));
  }
}

/// The same value, of which the compiler knows only the register: a choice between elements of an
/// array stays a choice between registers, instead of becoming an index into memory.
__device__ __forceinline__ float opaque(float value) {
  asm volatile("" : "+f"(value));
  return value;
}

}  // namespace baleen::kernels::ptx
