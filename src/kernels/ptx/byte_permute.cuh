#pragma once
// prmt.b32: four bytes of the eight in (high, low), one per selector nibble of the low 16 bits. The
// caller keeps bit 3 of each nibble zero (it would replicate a sign) and may leave anything above
// bit 15: unlike __byte_perm nothing is masked here.
//
//   uint32_t bytes = permute_bytes(table_low, table_high, selector & 0x77777777U);

#include <cstdint>

namespace baleen::kernels::ptx {

__device__ __forceinline__ uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(selector));
  return bytes;
}

}  // namespace baleen::kernels::ptx
