#pragma once
// Products of one ring stage: FP8 with promotion every 128 inputs, bf16 in
// running accumulators, and e4m3 weights converted to bf16 register operands.
// Included by linear_body.cuh.

#include <cstdint>

#include "kernels/linear/linear_layout.h"
#include "kernels/ptx/packed_bf16.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace baleen::kernels::linear_body {

/// The low word of a tile's descriptor, known to be the same in all lanes of a warp: then the
/// compiler steps through a tile in uniform registers, instead of moving four words per
/// instruction.
__device__ __forceinline__ uint32_t uniform_descriptor(const uint8_t* tile) {
  const auto low = static_cast<uint32_t>(ptx::k_major_descriptor(tile));
  return __shfl_sync(0xFFFFFFFFU, low, 0);
}

/// The descriptor `bytes` further on (a multiple of 16, inside shared memory).
__device__ __forceinline__ uint64_t descriptor_at(uint32_t low, int bytes) {
  constexpr uint64_t kHigh = (uint64_t{1} << 62) | (uint64_t{1024 >> 4} << 32);
  return kHigh | (low + static_cast<uint32_t>(bytes >> 4));
}

/// `kBlocks` blocks of 128 inputs in FP8, the first kFirst of them at `weights`, the others at
/// `more_weights` (another ring stage). Their chains of four instructions are independent and take
/// turns: a chain alone waits for itself.
template <int kTokens, int kBlocks, int kFirst>
__device__ __forceinline__ void multiply_e4m3(float (&acc)[kTokens / 2],
                                              const uint8_t* weights,
                                              const uint8_t* more_weights,
                                              const uint8_t* x,
                                              const float* weight_scales,
                                              const float* x_scales) {
  float part[kBlocks][kTokens / 2] = {};
  const uint32_t a = uniform_descriptor(weights);
  const uint32_t more_a = kBlocks > kFirst ? uniform_descriptor(more_weights) : a;
  const uint32_t b = uniform_descriptor(x);
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      ptx::Wgmma<ptx::E4m3, kTokens>::shared(
          part[block],
          block < kFirst ? descriptor_at(a, block * kTileBytes + 32 * k)
                         : descriptor_at(more_a, (block - kFirst) * kTileBytes + 32 * k),
          descriptor_at(b, block * kTokens * kTileRowBytes + 32 * k),
          k > 0);
    }
  }
  ptx::wgmma_commit();
  // Scales arrive while the products run.
  float2 scales[kBlocks][kTokens / 8];
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    const float weight_scale = weight_scales[block];
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      const float2 of_x = *reinterpret_cast<const float2*>(x_scales + block * kTokens + 8 * j +
                                                           2 * (static_cast<int>(threadIdx.x) % 4));
      // Powers of two: the product is exact, adding the scaled sum rounds once.
      scales[block][j] = make_float2(weight_scale * of_x.x, weight_scale * of_x.y);
    }
  }
  ptx::wgmma_wait<0>();
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    ptx::pin_registers(part[block]);
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      const float2 scale = scales[block][j];
      acc[4 * j] = fmaf(part[block][4 * j], scale.x, acc[4 * j]);
      acc[4 * j + 1] = fmaf(part[block][4 * j + 1], scale.y, acc[4 * j + 1]);
      acc[4 * j + 2] = fmaf(part[block][4 * j + 2], scale.x, acc[4 * j + 2]);
      acc[4 * j + 3] = fmaf(part[block][4 * j + 3], scale.y, acc[4 * j + 3]);
    }
  }
}

/// Starts `kChunks` times 64 inputs in bf16, into the running accumulators.
template <int kTokens, int kChunks>
__device__ __forceinline__ void start_bf16(float (&acc)[kTokens / 2],
                                           const uint8_t* weights,
                                           const uint8_t* x,
                                           bool accumulate) {
  const uint32_t a = uniform_descriptor(weights);
  const uint32_t b = uniform_descriptor(x);
  ptx::wgmma_fence();
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      ptx::Wgmma<ptx::Bf16, kTokens>::shared(
          acc,
          descriptor_at(a, chunk * kTileBytes + 32 * k),
          descriptor_at(b, chunk * kTokens * kTileRowBytes + 32 * k),
          (accumulate || chunk > 0 || k > 0) ? 1 : 0);
    }
  }
  ptx::wgmma_commit();
}

/// Four e4m3 codes of order 0, 8, 1, 9 as two bf16 pairs: the code's seven low
/// bits are shifted under the bf16 exponent, which is exact up to the factor
/// 2^120 between the two biases (sub-normals too).
__device__ __forceinline__ void unpack_codes(uint32_t codes, uint32_t& low, uint32_t& high) {
  constexpr uint32_t kMagnitudes = 0x07F007F0;
  constexpr uint32_t kSigns = 0x80008000;
  constexpr uint32_t kBias = 0x7B807B80;  // 2^120 twice
  const uint32_t upper = ((codes >> 4) & kMagnitudes) | (codes & kSigns);
  const uint32_t lower = ((codes << 4) & kMagnitudes) | ((codes << 8) & kSigns);
  low = ptx::multiply_bf16x2(lower, kBias);
  high = ptx::multiply_bf16x2(upper, kBias);
}

/// 64 rows x 128 inputs of e4m3 weights against bf16 x: codes become bf16
/// operands in registers.
template <int kTokens>
__device__ __forceinline__ void multiply_converted(float (&acc)[kTokens / 2],
                                                   const uint8_t* weights,
                                                   const uint8_t* x,
                                                   float weight_scale) {
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float part[kTokens / 2] = {};
  uint32_t a[8][4];
  const uint4* codes = reinterpret_cast<const uint4*>(weights + warp * 2048) + lane;
  const uint32_t b = uniform_descriptor(x);
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    const uint4 four = codes[pair * 32];
    unpack_codes(four.x, a[2 * pair][0], a[2 * pair][2]);
    unpack_codes(four.y, a[2 * pair][1], a[2 * pair][3]);
    unpack_codes(four.z, a[2 * pair + 1][0], a[2 * pair + 1][2]);
    unpack_codes(four.w, a[2 * pair + 1][1], a[2 * pair + 1][3]);
  }
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    ptx::Wgmma<ptx::Bf16, kTokens>::registers(
        part, a[k], descriptor_at(b, (k / 4) * kTokens * kTileRowBytes + 32 * (k % 4)), k > 0);
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::pin_registers(part);
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i) {
    acc[i] = fmaf(part[i], weight_scale, acc[i]);
  }
}

}  // namespace baleen::kernels::linear_body
