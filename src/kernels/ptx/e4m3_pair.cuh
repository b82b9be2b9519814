#pragma once
// cvt.rn.satfinite.e4m3x2.f32 (sm_89 and later): two float32 to two e4m3 codes, to nearest even,
// clamped to +-448; NaN gives 0x7F. `low` lands in bits 0-7. Per thread, no alignment or scope.
//
//   uint16_t pair = ptx::e4m3_pair(x0, x1);

#include <cstdint>

namespace baleen::kernels::ptx {

__device__ inline uint16_t e4m3_pair(float low, float high) {
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}

/// Four codes, x0 in the lowest byte.
__device__ inline uint32_t e4m3_quad(float x0, float x1, float x2, float x3) {
  return static_cast<uint32_t>(e4m3_pair(x0, x1)) |
         (static_cast<uint32_t>(e4m3_pair(x2, x3)) << 16);
}

}  // namespace baleen::kernels::ptx
