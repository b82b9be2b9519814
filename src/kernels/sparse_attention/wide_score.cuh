#pragma once
// Score group of a block of 64 heads: S[64 heads, 64 rows] = q * rows^T, running maxima, weights.
// Heads are the 64-row side of the product, so a warp owns 16 heads with all their rows and needs
// no other warp's numbers. Lane l of warp w holds heads 16 w + l / 4 and + 8, rows 8 j + 2 (l % 4)
// and + 1 of a tile, j = 0..7.
//
//   score_wide_tiles(params, shared, tiles, query, head_group);   // leaves totals, or factors
//
// Sums of weights are added in the order that narrower blocks use (attention_score.cuh): rows 8
// apart, then 4, 2 and 1 apart, per unit of 16 rows, kept apart by unit and parity of the tile.

#include <cstdint>

#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/convert.cuh"
#include "kernels/ptx/exp2.cuh"
#include "kernels/ptx/role_registers.cuh"
#include "kernels/ptx/shared_access.cuh"
#include "kernels/ptx/shared_store.cuh"
#include "kernels/sparse_attention/attention_output.cuh"
#include "kernels/sparse_attention/wide_join.cuh"
#include "kernels/sparse_attention/wide_tile.cuh"

namespace baleen::kernels {

inline constexpr int kHeldBlocks = AttentionShape<kWideHeads>::kHeldBlocks;

/// Fragments of q's first blocks: operand registers of four instructions per block.
struct HeldQuery {
  uint32_t operand[4 * kHeldBlocks][4];
};

/// From global memory. Of a block and head a lane needs half the dims of two runs of sixteen (the
/// even or the odd pairs of wide_tile.cuh's quads); it reads a half run of each and changes two
/// words with its neighbour.
__device__ __forceinline__ void hold_query(const SparseAttentionParams& params,
                                           int32_t query,
                                           int32_t head_group,
                                           HeldQuery& held) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int c = lane % 4;
  const bool is_odd = c % 2 != 0;
  const int64_t row =
      (static_cast<int64_t>(query) * (params.heads / kWideHeads) + head_group) * kWideHeads +
      static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
  const uint16_t* q = params.q + row * kKvDims + 16 * (c / 2) + 8 * (c % 2);
  uint4 words[kHeldBlocks][4];  // [block][head + 2 * run]
#pragma unroll
  for (int block = 0; block < kHeldBlocks; ++block) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      words[block][r] = __ldg(
          reinterpret_cast<const uint4*>(q + (r % 2) * 8 * kKvDims + block * 64 + r / 2 * 32));
    }
  }
  const uint32_t mine = is_odd ? 0x7632U : 0x5410U;  // dims 1 and 3, or 0 and 2, of a quad
  const uint32_t theirs = is_odd ? 0x5410U : 0x7632U;
#pragma unroll
  for (int block = 0; block < kHeldBlocks; ++block) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const uint4 w = words[block][r];
      const uint32_t own[2] = {__byte_perm(w.x, w.y, mine), __byte_perm(w.z, w.w, mine)};
      const uint32_t other[2] = {__shfl_xor_sync(kWholeWarp, __byte_perm(w.x, w.y, theirs), 1),
                                 __shfl_xor_sync(kWholeWarp, __byte_perm(w.z, w.w, theirs), 1)};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        held.operand[4 * block + i][r] = is_odd ? other[i] : own[i];
        held.operand[4 * block + 2 + i][r] = is_odd ? own[i] : other[i];
      }
    }
  }
}

/// Starts the products of a tile; wgmma_wait ends them. scores[4 j + r] is head + 8 (r / 2), row
/// 8 j + 2 (l % 4) + r % 2.
__device__ __forceinline__ void start_wide_scores(float (&scores)[32],
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
}

/// Sum of weights of a lane's unit of 16 rows, for its two heads, and to which maximum it refers.
struct WideSums {
  float sums[2] = {0, 0};
  float maximum[2] = {kNoMaximum, kNoMaximum};
};

/// A tile's weights of rows 8 apart, added: [head][row % 2][unit of 16 rows].
using WidePairs = float[2][2][4];

__device__ __forceinline__ void pair_wide_weights(const float (&weights)[32], WidePairs& pairs) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int b = 0; b < 2; ++b) {
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        pairs[h][b][u] = __fadd_rn(weights[8 * u + 2 * h + b], weights[8 * u + 4 + 2 * h + b]);
      }
    }
  }
}

/// Adds the tile's weights: lane l keeps unit l % 4.
__device__ __forceinline__ void add_wide_weights(const WidePairs& pairs,
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
      const auto& unit = pairs[h][b];
      float four[2];
#pragma unroll
      for (int u = 0; u < 2; ++u) {  // 4 apart
        const float sent = upper_two ? unit[u] : unit[u + 2];
        const float mine = upper_two ? unit[u + 2] : unit[u];
        four[u] = __fadd_rn(mine, __shfl_xor_sync(kWholeWarp, sent, 2));
      }
      const float sent = upper_one ? four[0] : four[1];
      const float mine = upper_one ? four[1] : four[0];
      rows[b] = __fadd_rn(mine, __shfl_xor_sync(kWholeWarp, sent, 1));  // 2 apart
    }
    const float column = __fadd_rn(rows[0], rows[1]);
    state.sums[h] = __fmaf_rn(state.sums[h], ptx::exp2_fast(state.maximum[h] - now[h]), column);
    state.maximum[h] = now[h];
  }
}

/// Largest of a lane's scores of a head.
template <int kHead>
__device__ __forceinline__ float max_of_head(const float (&scores)[32]) {
  float top[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    top[j] = fmaxf(scores[4 * j + 2 * kHead], scores[4 * j + 2 * kHead + 1]);
  }
  return fmaxf(fmaxf(fmaxf(top[0], top[1]), fmaxf(top[2], top[3])),
               fmaxf(fmaxf(top[4], top[5]), fmaxf(top[6], top[7])));
}

/// Turns scores into weights relative to the running maxima and stores them with their factors.
__device__ __forceinline__ void weigh_wide_tile(const AttentionShared<kWideHeads>& shared,
                                                float (&scores)[32],
                                                float (&running)[2],
                                                int index,
                                                float scale) {
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
  // Both heads' steps side by side, so that their latencies overlap.
  float top[2] = {max_of_head<0>(scores), max_of_head<1>(scores)};
#pragma unroll
  for (int distance = 1; distance <= 2; ++distance) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      top[h] = fmaxf(top[h], __shfl_xor_sync(kWholeWarp, top[h], distance));
    }
  }
  float now[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    now[h] = fmaxf(running[h], top[h] * scale);
    // The four lanes of a head write the same.
    stats.factor[index % 2][head + 8 * h] = ptx::exp2_fast(running[h] - now[h]);
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
  __syncwarp();
  if (lane == 0) {
    ptx::barrier_arrive(&stats.full[0]);
  }
}

/// Sums over units, then maximum and sum over tiles of both parities; all four lanes of a head get
/// them.
__device__ __forceinline__ void total_wide_sums(const WideSums& even,
                                                const WideSums& odd,
                                                float (&maximum)[2],
                                                float (&sum)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    maximum[h] = fmaxf(even.maximum[h], odd.maximum[h]);
    sum[h] = 0;
    const auto add = [&](float rows, float refers_to) {
      rows = __fadd_rn(rows, __shfl_xor_sync(kWholeWarp, rows, 1));
      rows = __fadd_rn(rows, __shfl_xor_sync(kWholeWarp, rows, 2));
      sum[h] = __fmaf_rn(rows, ptx::exp2_fast(refers_to - maximum[h]), sum[h]);
    };
    add(even.sums[h], even.maximum[h]);
    add(odd.sums[h], odd.maximum[h]);
  }
}

__device__ __forceinline__ void score_wide_tiles(const SparseAttentionParams& params,
                                                 const AttentionShared<kWideHeads>& shared,
                                                 int32_t tiles,
                                                 int32_t query,
                                                 int32_t head_group) {
  AttentionStats<kWideHeads>& stats = shared.stats();
  const float scale = params.scale * ptx::kLog2E;
  float running[2] = {kNoMaximum, kNoMaximum};
  WideSums state;  // of the parity of the tile in hand
  WideSums other;
  HeldQuery held;
  hold_query(params, query, head_group, held);
  ptx::barrier_wait_or_leave(&stats.q_ready, 0);
  float scores[32];
  WidePairs pairs = {};  // of the tile before
  for (int32_t index = 0; index < tiles; ++index) {
    ptx::barrier_wait_or_leave(&stats.expanded[index % 3], (index / 3) & 1);
    start_wide_scores(scores, shared, held, index % 3);
    add_wide_weights(pairs, running, state);  // beside the products
    const WideSums kept = state;
    state = other;
    other = kept;
    ptx::wgmma_wait<0>();
    ptx::pin_registers(scores);
    weigh_wide_tile(shared, scores, running, index, scale);
    pair_wide_weights(scores, pairs);
  }
  add_wide_weights(pairs, running, state);
  if (tiles % 2 == 0) {  // `state` is of odd tiles
    const WideSums kept = state;
    state = other;
    other = kept;
  }
  float maximum[2];
  float sum[2];
  total_wide_sums(state, other, maximum, sum);
  // Beside the last output product.
  prepare_stores<kWideHeads>(
      params, shared, query, head_group * kWideHeads, static_cast<int>(threadIdx.x));
  publish_wide_factors(params, shared, maximum, sum, query, head_group);
  __syncwarp();
  ptx::named_barrier_arrive(kTotalsBarrier, kGroupThreads + kOutputThreads);
}

}  // namespace baleen::kernels
