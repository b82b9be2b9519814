#pragma once
// Tensor products of one warp, D[16, 8] += A[16, 16] * B[16, 8] in bf16 with FP32 accumulators, and
// the transposition of their operands between lanes. All 32 lanes execute each.
//
//   float d[4] = {};                       // lane l: rows l / 4 and + 8, columns 2 * (l % 4) and +
//   1 multiply_16x8(d, a, b0, b1);           // d[0], d[1]: the upper row
//
// Register a[0] of lane l is row l / 4, k = 2 * (l % 4) and + 1 (the lower one in the low half);
// a[1] the same k of row l / 4 + 8; a[2] and a[3] the same rows, k + 8. b0 is column l / 4, k = 2 *
// (l % 4) and + 1; b1 the same column, k + 8.

#include <cstdint>

namespace baleen::kernels::ptx {

/// mma.sync m16n8k16
__device__ __forceinline__ void multiply_16x8(
    float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// movmatrix.trans: lane l gives row l / 4, columns 2 * (l % 4) and + 1 of an 8 x 8 tile of 16-bit
/// values and gets column l / 4, rows 2 * (l % 4) and + 1.
__device__ __forceinline__ uint32_t transpose_8x8(uint32_t pair) {
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}

}  // namespace baleen::kernels::ptx
