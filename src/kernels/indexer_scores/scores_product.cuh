#pragma once
// What the warp groups of the index scores kernels do with a key page: the product with queries,
// the sum over heads in one order, the store. Used by scores_consume.cuh and scores_lone.cuh.

#include <cstdint>

#include "kernels/indexer_scores/scores_arena.cuh"
#include "kernels/ptx/convert.cuh"
#include "kernels/ptx/elected_arrive.cuh"
#include "kernels/ptx/shared_access.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace baleen::kernels {

/// Starts the products of one key tile with `kQueries` query tiles, both given by the low words of
/// their descriptors, the same in all lanes.
template <int kQueries>
__device__ __forceinline__ void start_product(float (&dots)[32 * kQueries],
                                              uint32_t keys,
                                              uint32_t heads) {
  // The upper words of k_major_descriptor; from tile to tile only the lower one differs.
  constexpr uint64_t kHigh = static_cast<uint64_t>(ptx::Swizzle::k128) << 62 | uint64_t{1024 >> 4}
                                                                                   << 32;
  ptx::pin_registers(dots);
  ptx::wgmma_fence();
#pragma unroll
  for (uint32_t step = 0; step < 4; ++step) {
    ptx::Wgmma<ptx::E4m3, 64 * kQueries>::shared(
        dots, kHigh | (keys + step * 2), kHigh | (heads + step * 2), step > 0 ? 1 : 0);
  }
  ptx::wgmma_commit();
}

template <int kCount>
__device__ __forceinline__ void finish_product(float (&dots)[kCount]) {
  ptx::wgmma_wait<0>();
  ptx::pin_registers(dots);
}

/// The head sums of this thread's two rows (r and r + 8) for query j of the product, the same in
/// the four lanes of a row. `weights` has this thread's column pairs 8 columns apart.
template <int kCount, class Weights>
__device__ __forceinline__ float2 sum_heads(const float (&dots)[kCount], int j, Weights weights) {
  float2 upper = make_float2(0, 0);
  float2 lower = make_float2(0, 0);
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    const float2 a = weights(c);
    const int at = 32 * j + 4 * c;
    upper.x = fmaf(fmaxf(dots[at], 0.0F), a.x, upper.x);
    upper.y = fmaf(fmaxf(dots[at + 1], 0.0F), a.y, upper.y);
    lower.x = fmaf(fmaxf(dots[at + 2], 0.0F), a.x, lower.x);
    lower.y = fmaf(fmaxf(dots[at + 3], 0.0F), a.y, lower.y);
  }
  float2 sum = make_float2(upper.x + upper.y, lower.x + lower.y);
#pragma unroll
  for (int step = 1; step <= 2; step *= 2) {
    sum.x += __shfl_xor_sync(0xFFFFFFFFU, sum.x, step);
    sum.y += __shfl_xor_sync(0xFFFFFFFFU, sum.y, step);
  }
  return sum;
}

/// Head weights of a thread's columns 8 c and 8 c + 1; `place` is its first pair in shared memory.
__device__ __forceinline__ float2 two_weights(uint32_t place, int c) {
  const uint2 bits = ptx::load_shared_8(place + static_cast<uint32_t>(c) * 32);
  return make_float2(__uint_as_float(bits.x), __uint_as_float(bits.y));
}

/// Where in a page (bytes) the scale of entry `row` stands; that of row + 8, in the same group of
/// 16, stands 32 bytes on. The scales are rows 64 and 65 of the page, and the second is an odd row
/// of its swizzle atom, so its neighbouring 16-byte chunks are exchanged.
__device__ __forceinline__ uint32_t scale_place(uint32_t row) {
  return ptx::swizzled_128(static_cast<uint32_t>(kIndexPageEntries) + row / 32, row % 32 * 4);
}

/// What a thread needs to write the scores of one key tile.
struct ScoreTile {
  float2 scale;   // of this thread's rows
  int32_t entry;  // of its upper row
};

__device__ __forceinline__ void store_scores(
    bool to_bf16, float* row, int32_t length, const ScoreTile& tile, float2 sum) {
  if (threadIdx.x % 4 != 0) {
    return;
  }
  float upper = sum.x * tile.scale.x;
  float lower = sum.y * tile.scale.y;
  if (to_bf16) {
    const uint32_t packed = ptx::pack_bf16(upper, lower);
    upper = ptx::low_bf16(packed);
    lower = ptx::high_bf16(packed);
  }
  const float none = __int_as_float(static_cast<int>(0xFF800000U));
  row[tile.entry] = tile.entry < length ? upper : none;
  row[tile.entry + 8] = tile.entry + 8 < length ? lower : none;
}

}  // namespace baleen::kernels
