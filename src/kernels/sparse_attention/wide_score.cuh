#pragma once
// Score group of a block of 64 heads: S[64 heads, 64 rows] = q * rows^T, running maxima, weights.
// Heads are the 64-row side of the product, so a warp owns 16 heads with all their rows and needs
// no other warp's numbers. Lane l of warp w holds heads 16 w + l / 4 and + 8, rows 8 j + 2 (l % 4)
// and + 1 of a tile, j = 0..7.
//
//   score_wide_tiles(params, shared, tiles);   // leaves shared.totals() of this block's rank
//
// Sums of weights are added in the order that narrower blocks use (attention_score.cuh): rows 8
// apart, then 4, 2 and 1 apart, per unit of 16 rows, kept apart by unit and parity of the tile.

#include <cstdint>

#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/convert.cuh"
#include "kernels/ptx/exp2.cuh"
#include "kernels/ptx/loaded_arrive.cuh"
#include "kernels/ptx/role_registers.cuh"
#include "kernels/ptx/shared_access.cuh"
#include "kernels/ptx/shared_store.cuh"
#include "kernels/sparse_attention/wide_tile.cuh"

namespace baleen::kernels {

inline constexpr int kHeldBlocks = AttentionShape<kWideHeads>::kHeldBlocks;

/// Fragments of q's first blocks: operand registers of four instructions per block.
struct HeldQuery {
  uint32_t operand[4 * kHeldBlocks][4];
};

__device__ __forceinline__ void hold_query(const AttentionShared<kWideHeads>& shared,
                                           HeldQuery& held) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
#pragma unroll
  for (int i = 0; i < 4 * kHeldBlocks; ++i) {
    const uint8_t* block = shared.q_block(i / 4);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const auto head = static_cast<uint32_t>(16 * warp + lane / 4 + 8 * (r % 2));
      const auto byte = static_cast<uint32_t>(32 * (i % 4) + 4 * (lane % 4) + 16 * (r / 2));
      held.operand[i][r] =
          *reinterpret_cast<const uint32_t*>(block + ptx::swizzled_128(head, byte));
    }
  }
}

/// scores[4 j + r] is head + 8 (r / 2), row 8 j + 2 (l % 4) + r % 2.
__device__ __forceinline__ void score_wide_tile(float (&scores)[32],
                                                const AttentionShared<kWideHeads>& shared,
                                                const HeldQuery& held,
                                                int buffer) {
  const uint64_t rows = ptx::make_descriptor(
      ptx::shared_address(wide_unit(shared, buffer, 0)), 16, kWideUnitBytes, ptx::Swizzle::k128);
  const uint64_t q = ptx::k_major_descriptor(shared.q_block(kHeldBlocks));
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < 4 * kDimBlocks; ++i) {
    const uint64_t b =
        ptx::advance_descriptor(rows, static_cast<uint32_t>(i / 4 * kWideBlockBytes + i % 4 * 32));
    if (i < 4 * kHeldBlocks) {
      ptx::Wgmma<ptx::Bf16, 64>::registers<0>(scores, held.operand[i], b, i > 0 ? 1 : 0);
    } else {
      ptx::Wgmma<ptx::Bf16, 64>::shared<0, 0>(
          scores,
          ptx::advance_descriptor(
              q, static_cast<uint32_t>((i / 4 - kHeldBlocks) * kWideHeads * 128 + i % 4 * 32)),
          b,
          i > 0 ? 1 : 0);
    }
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::pin_registers(scores);
}

/// Sum of weights of a lane's unit of 16 rows, for its two heads, and to which maximum it refers.
struct WideSums {
  float sums[2] = {0, 0};
  float maximum[2] = {kNoMaximum, kNoMaximum};
};

/// Adds the tile's weights: lane l keeps unit l % 4.
__device__ __forceinline__ void add_wide_weights(const float (&weights)[32],
                                                 const float (&now)[2],
                                                 WideSums& state) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool upper_two = (lane & 2) != 0;
  const bool upper_one = (lane & 1) != 0;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float rows[2];
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      float unit[4];  // rows 8 apart
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        unit[u] = __fadd_rn(weights[8 * u + 2 * h + b], weights[8 * u + 4 + 2 * h + b]);
      }
#pragma unroll
      for (int u = 0; u < 2; ++u) {  // 4 apart
        const float sent = upper_two ? unit[u] : unit[u + 2];
        const float mine = upper_two ? unit[u + 2] : unit[u];
        unit[u] = __fadd_rn(mine, __shfl_xor_sync(kWholeWarp, sent, 2));
      }
      const float sent = upper_one ? unit[0] : unit[1];
      const float mine = upper_one ? unit[1] : unit[0];
      rows[b] = __fadd_rn(mine, __shfl_xor_sync(kWholeWarp, sent, 1));  // 2 apart
    }
    const float column = __fadd_rn(rows[0], rows[1]);
    state.sums[h] = __fmaf_rn(state.sums[h], ptx::exp2_fast(state.maximum[h] - now[h]), column);
    state.maximum[h] = now[h];
  }
}

/// Turns scores into weights relative to the running maxima and stores them with their factors.
__device__ __forceinline__ void weigh_wide_tile(const AttentionShared<kWideHeads>& shared,
                                                float (&scores)[32],
                                                float (&running)[2],
                                                int index,
                                                float scale,
                                                WideSums& state) {
  AttentionStats<kWideHeads>& stats = shared.stats();
  const int buffer = index % 3;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int head = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
  const uint2 present = *reinterpret_cast<const uint2*>(stats.present_rows[buffer]);
  const bool all_present = (present.x & present.y) == 0xFFFFFFFFU;
  const auto is_present = [&](int i) {
    const int row = 8 * (i / 4) + i % 2;
    return (((i < 16 ? present.x : present.y) >> (row % 32 + 2 * (lane % 4))) & 1U) != 0;
  };
  if (!all_present) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      scores[i] = is_present(i) ? scores[i] : kNoMaximum * 1e6F;
    }
  }
  float now[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float top = fmaxf(scores[2 * h], scores[2 * h + 1]);
#pragma unroll
    for (int j = 1; j < 8; ++j) {
      top = fmaxf(top, fmaxf(scores[4 * j + 2 * h], scores[4 * j + 2 * h + 1]));
    }
    top = fmaxf(top, __shfl_xor_sync(kWholeWarp, top, 1));
    top = fmaxf(top, __shfl_xor_sync(kWholeWarp, top, 2));
    now[h] = fmaxf(running[h], top * scale);
    if (lane % 4 == 0) {
      stats.factor[index % 2][head + 8 * h] = ptx::exp2_fast(running[h] - now[h]);
    }
    running[h] = now[h];
  }
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    scores[i] = ptx::exp2_fast(__fmaf_rn(scores[i], scale, -now[i / 2 % 2]));
  }
  if (!all_present) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      scores[i] = is_present(i) ? scores[i] : 0.0F;
    }
  }
  if (index > 0) {  // the weights before are read
    ptx::barrier_wait_or_leave(&stats.freed[(index - 1) % 3], freed_parity<kWideHeads>(index - 1));
  }
  // Chunk j of a head's line stands at j ^ (head % 8); the two heads share that.
  const uint32_t line = ptx::pinned(
      ptx::shared_address(shared.weights(0)) +
      ptx::swizzled_128(static_cast<uint32_t>(head), static_cast<uint32_t>(4 * (lane % 4))));
#pragma unroll
  for (uint32_t j = 0; j < 8; ++j) {
#pragma unroll
    for (uint32_t h = 0; h < 2; ++h) {
      ptx::store_shared_4((line ^ (j << 4)) + h * 8 * 128,
                          ptx::pack_bf16(scores[4 * j + 2 * h], scores[4 * j + 2 * h + 1]));
    }
  }
  ptx::fence_async_shared();
  ptx::barrier_arrive(&stats.full[0]);
  add_wide_weights(scores, now, state);
}

/// Sums over units, then maximum and sum over tiles of both parities, for the joining that follows.
__device__ __forceinline__ void publish_wide_totals(const AttentionShared<kWideHeads>& shared,
                                                    const WideSums& even,
                                                    const WideSums& odd) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int head = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float maximum = fmaxf(even.maximum[h], odd.maximum[h]);
    float sum = 0;
    const auto add = [&](float rows, float refers_to) {
      rows = __fadd_rn(rows, __shfl_xor_sync(kWholeWarp, rows, 1));
      rows = __fadd_rn(rows, __shfl_xor_sync(kWholeWarp, rows, 2));
      sum = __fmaf_rn(rows, ptx::exp2_fast(refers_to - maximum), sum);
    };
    add(even.sums[h], even.maximum[h]);
    add(odd.sums[h], odd.maximum[h]);
    if (lane % 4 == 0) {
      shared.totals(static_cast<int>(ptx::cluster_rank()))[head + 8 * h] =
          make_float2(maximum, sum);
    }
  }
}

__device__ __forceinline__ void score_wide_tiles(const SparseAttentionParams& params,
                                                 const AttentionShared<kWideHeads>& shared,
                                                 int32_t tiles) {
  AttentionStats<kWideHeads>& stats = shared.stats();
  const float scale = params.scale * ptx::kLog2E;
  float running[2] = {kNoMaximum, kNoMaximum};
  WideSums state;  // of the parity of the tile in hand
  WideSums other;
  HeldQuery held;
  ptx::barrier_wait_or_leave(&stats.q_ready, 0);
  hold_query(shared, held);
  __syncwarp();
  if (threadIdx.x % 32 < 2) {  // eight arrivals: the third buffer is free for its tile
    uint32_t loaded = 0;
#pragma unroll
    for (int i = 0; i < 4 * kHeldBlocks; ++i) {
      loaded |= held.operand[i][0] | held.operand[i][1] | held.operand[i][2] | held.operand[i][3];
    }
    ptx::barrier_arrive_loaded(&stats.freed[2], loaded);
  }
  for (int32_t index = 0; index < tiles; ++index) {
    const int buffer = index % 3;
    ptx::barrier_wait_or_leave(&stats.expanded[buffer], (index / 3) & 1);
    float scores[32];
    score_wide_tile(scores, shared, held, buffer);
    weigh_wide_tile(shared, scores, running, index, scale, state);
    const WideSums kept = state;
    state = other;
    other = kept;
  }
  if (tiles % 2 != 0) {  // `other` is of even tiles
    const WideSums kept = state;
    state = other;
    other = kept;
  }
  ptx::named_barrier_sync(kScoreBarrier, kGroupThreads);  // totals take the place of q
  publish_wide_totals(shared, state, other);
  ptx::named_barrier_arrive(kTotalsBarrier, kGroupThreads + kOutputThreads);
}

}  // namespace baleen::kernels
