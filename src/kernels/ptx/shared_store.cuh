#pragma once
// st.shared by 32-bit address, the counterpart of shared_access.cuh.
//
//   store_shared_4(line ^ (j << 4), packed);   // 4-byte aligned

#include <cstdint>

namespace baleen::kernels::ptx {

__device__ __forceinline__ void store_shared_4(uint32_t address, uint32_t value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

}  // namespace baleen::kernels::ptx
