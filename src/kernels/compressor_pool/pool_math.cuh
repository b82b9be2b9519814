#pragma once
// The arithmetic of compressor pooling, shared by every writer of entries (prefill, decode,
// portable), so that an entry has one bit pattern wherever it was made. Device functions on
// registers.
//
//   float pooled = pool_window8(scores, values);            // one channel, slot order
//   PoolSum run = pool_run<16>(scores, values, maximum);    // one run of a long window

#include "kernels/ptx/exp2.cuh"

namespace baleen::kernels {

/// Weight of a slot relative to the exact maximum. The difference is taken before the scaling:
/// scores of 1e4 keep their distance. A score of -inf (carry rows of the first group) has weight 0.
__device__ __forceinline__ float pool_weight(float score, float maximum) {
  return ptx::exp2_fast(__fmul_rn(__fsub_rn(score, maximum), ptx::kLog2E));
}

struct PoolSum {
  float weight = 0.0F;
  float value = 0.0F;
};

__device__ __forceinline__ void pool_add(PoolSum& sum, float weight, float value) {
  sum.weight = __fadd_rn(sum.weight, weight);
  sum.value = __fmaf_rn(weight, value, sum.value);
}

/// Appends a later run: the sums of both relative to the same maximum.
__device__ __forceinline__ void pool_append(PoolSum& sum, PoolSum run) {
  sum.weight = __fadd_rn(sum.weight, run.weight);
  sum.value = __fadd_rn(sum.value, run.value);
}

__device__ __forceinline__ float pool_result(PoolSum sum) {
  return __fdiv_rn(sum.value, sum.weight);
}

/// One channel of a window of 8. A slot that does not exist has score -inf and value 0.
__device__ __forceinline__ float pool_window8(const float (&scores)[8], const float (&values)[8]) {
  float maximum = scores[0];
#pragma unroll
  for (int s = 1; s < 8; ++s) {
    maximum = fmaxf(maximum, scores[s]);
  }
  PoolSum sum;
#pragma unroll
  for (int s = 0; s < 8; ++s) {
    pool_add(sum, pool_weight(scores[s], maximum), values[s]);
  }
  return pool_result(sum);
}

}  // namespace baleen::kernels
