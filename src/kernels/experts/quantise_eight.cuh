#pragma once
// Hidden rows on their way from bf16 to e4m3: sixteen lanes share a block of 128 and its scale.
//
//   const QuantisedEight eight = quantise_eight(packed, thread);   // lane l: from value 8 l on

#include <cstdint>

#include "kernels/ptx/convert.cuh"
#include "numerics/block_scale.h"

namespace baleen::kernels::experts {

/// Eight values of a block of 128 that sixteen lanes share, as e4m3 codes.
struct QuantisedEight {
  uint2 codes;
  float scale;  // of the block
};

/// `packed`: eight bf16 values; `thread`: its half of the warp shares the block.
__device__ __forceinline__ QuantisedEight quantise_eight(uint4 packed, int thread) {
  const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
  float values[8];
  float largest = 0.0F;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[2 * i] = ptx::low_bf16(words[i]);
    values[2 * i + 1] = ptx::high_bf16(words[i]);
    largest = fmaxf(largest, fmaxf(fabsf(values[2 * i]), fabsf(values[2 * i + 1])));
  }
  const uint32_t lanes = 0xFFFFU << (thread & 16);
#pragma unroll
  for (int distance = 1; distance < 16; distance *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(lanes, largest, distance));
  }
  const float scale = numerics::q8_scale(largest);
  const float inverse = numerics::float_from_bits((254U << 23) - numerics::float_bits(scale));
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    values[i] *= inverse;
  }
  return {make_uint2(ptx::pack_e4m3(values[0], values[1], values[2], values[3]),
                     ptx::pack_e4m3(values[4], values[5], values[6], values[7])),
          scale};
}

}  // namespace baleen::kernels::experts
