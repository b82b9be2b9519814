#pragma once
// Values in global memory that say by themselves whether they are there: zero is "not yet". The
// reader asks again until all of them are there, so nothing orders the writer's stores and nobody
// counts. Whoever read last makes them zero again.
//
//   store_arriving_bf16(words + i, value);                       // writer: zero becomes 2^-133
//   do { eight = load_words(words); } while (!has_no_zero(eight));

#include <cstdint>

namespace baleen::kernels::ptx {

/// ld.relaxed.gpu of 16 bytes, each element by itself; 16-byte aligned.
__device__ __forceinline__ uint4 load_words(const void* from) {
  uint4 words;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(from)
               : "memory");
  return words;
}

/// None of the eight 16-bit values is zero.
__device__ __forceinline__ bool has_no_zero(uint4 words) {
  const uint32_t zeros =
      __vcmpeq2(words.x, 0) | __vcmpeq2(words.y, 0) | __vcmpeq2(words.z, 0) | __vcmpeq2(words.w, 0);
  return zeros == 0;
}

/// st.relaxed.gpu of a bf16 value; zero is stored as the smallest value above it.
__device__ __forceinline__ void store_arriving_bf16(uint16_t* to, uint16_t value) {
  const uint16_t word = value == 0 ? uint16_t{1} : value;
  asm volatile("st.relaxed.gpu.global.u16 [%0], %1;" ::"l"(to), "h"(word) : "memory");
}

}  // namespace baleen::kernels::ptx
