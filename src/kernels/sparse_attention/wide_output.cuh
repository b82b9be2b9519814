#pragma once
// Output groups of a block of 64 heads: expand rows to bf16 and accumulate
// O[64 heads, 256 dims] += weights * rows, each group its half of the dims. Heads are the 64-row
// side of the product, rows come transposed from the same lines that the scores read.
//
//   accumulate_wide_tiles(shared, acc, tiles, group, is_pair);

#include <cstdint>

#include "kernels/ptx/role_registers.cuh"
#include "kernels/ptx/shared_access.cuh"
#include "kernels/sparse_attention/attention_output.cuh"
#include "kernels/sparse_attention/wide_join.cuh"
#include "kernels/sparse_attention/wide_tile.cuh"

namespace baleen::kernels {

/// Expands this warp's unit of a tile, once its bytes are there, and tells the score group.
__device__ __forceinline__ void expand_wide_tile(const AttentionShared<kWideHeads>& shared,
                                                 int32_t index) {
  AttentionStats<kWideHeads>& stats = shared.stats();
  const int buffer = index % 3;
  ptx::barrier_wait_or_leave(&stats.fetched[buffer], (index / 3) & 1);
  // Pinned: what follows from it is computed again each time, registers are short.
  const uint32_t thread = ptx::pinned(threadIdx.x);
  const uint32_t lane = thread % 32;
  const uint32_t unit = thread / 32 - kGroupThreads / 32;
  uint8_t* place = wide_unit(shared, buffer, 0) + unit * kWideUnitBytes;
  const uint32_t row = wide_lane_row(lane);
  const uint32_t present = reinterpret_cast<const uint8_t*>(stats.present_rows[buffer])[unit];
  expand_unit(place,
              reinterpret_cast<const uint2*>(place + kEarlyBlocks * kWideBlockBytes)[row],
              ((present >> row) & 1U) != 0,
              lane);
  ptx::fence_async_shared();
  __syncwarp();
  if (lane == 0) {
    ptx::barrier_arrive(&stats.expanded[buffer]);
  }
}

__device__ __forceinline__ uint64_t high_word(uint64_t descriptor) {
  return descriptor & 0xFFFFFFFF00000000U;
}

/// Leaves acc[4 j + 2 h + i]: head 16 w + l / 4 + 8 h, place 8 j + 2 (l % 4) + i of the group's
/// 256.
__device__ __forceinline__ void accumulate_wide_tiles(const AttentionShared<kWideHeads>& shared,
                                                      WideAccumulators& acc,
                                                      int32_t tiles,
                                                      int group,
                                                      bool is_pair) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int head = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
  AttentionStats<kWideHeads>& stats = shared.stats();
#pragma unroll
  for (int i = 0; i < 128; ++i) {
    acc[i] = 0;
  }
  if (is_pair && tiles == 0) {
    offer_spare(shared);
  }
  for (int32_t index = 0; index < min(tiles, 2); ++index) {
    expand_wide_tile(shared, index);
  }
  for (int32_t index = 0; index < tiles; ++index) {
    const int buffer = index % 3;
    ptx::barrier_wait_or_leave(&stats.full[0], index & 1);
    if (index > 0) {
      const float* factors = stats.factor[index % 2];
      const float factor[2] = {factors[head], factors[head + 8]};
      if (__any_sync(kWholeWarp, factor[0] != 1.0F || factor[1] != 1.0F)) {
#pragma unroll
        for (int i = 0; i < 128; ++i) {
          acc[i] *= factor[i / 2 % 2];
        }
      }
    }
    // Of a descriptor only the low word changes; pinned, so that no register holds one for long.
    const uint64_t of_weights = ptx::k_major_descriptor(shared.weights(0));
    const uint64_t of_rows = ptx::make_descriptor(
        ptx::shared_address(wide_unit(shared, buffer, 0)) +
            static_cast<uint32_t>(group * kDimBlocks / kOutputGroups * kWideBlockBytes),
        kWideBlockBytes,
        kWideUnitBytes,
        ptx::Swizzle::k128);
    const uint32_t weights = ptx::pinned(static_cast<uint32_t>(of_weights));
    const uint32_t rows = ptx::pinned(static_cast<uint32_t>(of_rows));
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        ptx::Wgmma<ptx::Bf16, 128>::shared<0, 1>(
            reinterpret_cast<float(&)[64]>(acc[64 * half]),
            high_word(of_weights) | (weights + 32 * k / 16),
            high_word(of_rows) |
                (rows + (2 * k * kWideUnitBytes + 2 * half * kWideBlockBytes) / 16),
            1);
      }
    }
    ptx::wgmma_commit();
    if (is_pair && index == tiles - 1) {
      offer_spare(shared);  // the tile before the last two is behind this warp
    }
    ptx::wgmma_wait<0>();
    ptx::pin_registers(acc);
    if (lane == 0) {
      ptx::barrier_arrive(&stats.freed[buffer]);  // before the wait for rows, which it may start
    }
    if (index + 2 < tiles) {
      expand_wide_tile(shared, index + 2);
    }
  }
}

}  // namespace baleen::kernels
