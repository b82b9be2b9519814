#pragma once
// Arithmetic on two bf16 values in one 32-bit register.
//
//   uint32_t products = multiply_bf16x2(a, b);

#include <cstdint>

namespace baleen::kernels::ptx {

/// mul.rn.bf16x2: sub-normal operands and results are kept.
__device__ __forceinline__ uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

}  // namespace baleen::kernels::ptx
