#pragma once
// mul.rn.bf16x2 (sm_90): two bf16 products, rounded to nearest even. Subnormal inputs and results
// are kept, which the expansion of e4m3 codes relies on.

#include <cstdint>

namespace baleen::kernels::ptx {

__device__ __forceinline__ uint32_t multiply_bf16(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

}  // namespace baleen::kernels::ptx
