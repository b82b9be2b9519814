#pragma once
// Loads from shared memory by 32-bit address (ld.shared) and a store, for inner loops that keep an
// address per lane, and a pin that stops the compiler from computing such an address again and
// again. Volatile: they stay in order with barrier waits.
//
//   const uint32_t mine = pinned(shared_address(tile) + threadIdx.x * 16);
//   uint4 codes = load_shared_16(mine + stage * kStageBytes);   // 16-byte aligned

#include <cstdint>

namespace baleen::kernels::ptx {

__device__ __forceinline__ uint4 load_shared_16(uint32_t address) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address));
  return value;
}

__device__ __forceinline__ uint2 load_shared_8(uint32_t address) {
  uint2 value;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "r"(address));
  return value;
}

__device__ __forceinline__ uint32_t load_shared_4(uint32_t address) {
  uint32_t value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address));
  return value;
}

__device__ __forceinline__ void store_shared_8(uint32_t address, uint2 value) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(value.x), "r"(value.y)
               : "memory");
}

/// cp.async 16 bytes global -> shared address past L1; zero-fills beyond `valid_bytes` (0..16).
__device__ __forceinline__ void async_copy_16_to(uint32_t shared,
                                                 const void* global,
                                                 uint32_t valid_bytes) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(valid_bytes)
      : "memory");
}

/// The same value, opaque to the compiler: kept in a register instead of computed anew.
__device__ __forceinline__ uint32_t pinned(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

}  // namespace baleen::kernels::ptx
