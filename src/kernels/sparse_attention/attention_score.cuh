#pragma once
// The first warp groups of the attention kernel: fetch a tile's rows, expand them to bf16
// (registers for the scores, shared memory for the output product), score them, and publish maxima
// and weights. Two groups take alternate tiles. Sums of even and odd tiles are kept apart in either
// case.
//
//   score_tiles<kHeads>(params, shared, tiles, group);
//
// S^T[64 rows, heads] = rows (register operand) * q^T. Lane l of warp w holds rows 16 w + l / 4 and
// + 8 and, of each segment of 64 bytes, bytes 16 (l % 4) .. + 15. A warp alone reads and rewrites
// its 16 rows, so no barrier stands between fetch and product.

#include <cstdint>

#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/convert.cuh"
#include "kernels/ptx/exp2.cuh"
#include "kernels/ptx/role_registers.cuh"
#include "kernels/ptx/store_matrix.cuh"
#include "kernels/sparse_attention/attention_tile.cuh"
#include "kernels/sparse_attention/row_expand.cuh"

namespace baleen::kernels {

/// The two rows of a thread in one tile.
struct TileRows {
  bool present[2];
  uint2 scales[2];
};

/// The thread's 16 bytes of two rows in each segment of 64 bytes.
struct RowBytes {
  uint4 segment[2][kSegments];
};

template <int kFirst, int kEnd>
__device__ __forceinline__ void read_rows(const uint8_t* unit,
                                          const TileRows& rows,
                                          bool all_present,
                                          RowBytes& bytes) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint8_t* from = unit + kRawBegin + lane / 4 * kKvValueBytes + lane % 4 * 16;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int s = kFirst; s < kEnd; ++s) {
      bytes.segment[h][s] = *reinterpret_cast<const uint4*>(from + 8 * h * kKvValueBytes + 64 * s);
    }
  }
  if (!all_present) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int s = kFirst; s < kEnd; ++s) {
        if (!rows.present[h]) {
          bytes.segment[h][s] = make_uint4(0, 0, 0, 0);  // a missing row must not bring NaN along
        }
      }
    }
  }
}

/// Expands half a block (32 dims) of both rows into the operands of two products.
template <int kBlock, int kHalf>
__device__ __forceinline__ void expand_half(const RowBytes& bytes,
                                            const TileRows& rows,
                                            bool with_rest,
                                            uint32_t (&operand)[2][4]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if constexpr (kBlock < kKvScales) {
      const RowScale scale = row_scale(scale_byte(rows.scales[h], kBlock));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4& segment = bytes.segment[h][kBlock];
        const uint32_t codes =
            kHalf == 0 ? (i == 0 ? segment.x : segment.y) : (i == 0 ? segment.z : segment.w);
        const BfQuad quad = expand_e4m3(codes, scale.multiplier);
        operand[i][h] = quad.even;
        operand[i][2 + h] = quad.odd;
      }
    } else {  // rope dims are bf16 already
      const uint4& segment = bytes.segment[h][kBlock + kHalf];
      operand[0][h] = segment.x;
      operand[0][2 + h] = segment.y;
      operand[1][h] = segment.z;
      operand[1][2 + h] = segment.w;
    }
  }
  if (kBlock < kKvScales && with_rest) {
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      uint32_t& pair = operand[r / 4][r % 4];
      pair = ptx::multiply_bf16(pair, row_scale(scale_byte(rows.scales[r % 2], kBlock)).rest);
    }
  }
}

/// Writes the half block back in bf16 and multiplies it with q.
template <int kHeads, int kBlock, int kHalf>
__device__ __forceinline__ void score_half(float (&scores)[kHeads / 2],
                                           uint8_t* unit,
                                           const uint32_t (&operand)[2][4],
                                           uint64_t q_descriptor) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int line = lane / 4;
  const int chunk = kBlock < kKvScales ? 2 * (lane % 4) + kHalf : 4 * kHalf + lane % 4;
  uint8_t* to = unit + kBlock * kBlockBytes + line * 128 + ((chunk ^ line) << 4);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    *reinterpret_cast<uint4*>(to + h * 8 * 128) =
        make_uint4(operand[0][h], operand[0][2 + h], operand[1][h], operand[1][2 + h]);
  }
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    ptx::Wgmma<ptx::Bf16, kHeads>::template registers<0>(
        scores,
        operand[i],
        ptx::advance_descriptor(q_descriptor, kBlock * kHeads * 128 + 32 * (2 * kHalf + i)),
        kBlock + kHalf + i > 0 ? 1 : 0);
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<1>();  // the operand registers of the half before are free again
}

template <int kHeads, int kBlock>
__device__ __forceinline__ void score_block(float (&scores)[kHeads / 2],
                                            uint8_t* unit,
                                            const RowBytes& bytes,
                                            const TileRows& rows,
                                            bool with_rest,
                                            uint32_t (&lower)[2][4],
                                            uint32_t (&upper)[2][4],
                                            uint64_t q_descriptor) {
  expand_half<kBlock, 0>(bytes, rows, with_rest, lower);
  score_half<kHeads, kBlock, 0>(scores, unit, lower, q_descriptor);
  expand_half<kBlock, 1>(bytes, rows, with_rest, upper);
  score_half<kHeads, kBlock, 1>(scores, unit, upper, q_descriptor);
}

/// Expands and scores a tile; scores[4 c + r] is row l / 4 + 8 (r / 2), head 8 c + 2 (l % 4) + r
/// % 2.
template <int kHeads>
__device__ __forceinline__ void score_rows(float (&scores)[kHeads / 2],
                                           uint8_t* unit,
                                           const TileRows& rows,
                                           uint64_t q_descriptor) {
  const bool with_rest =
      __any_sync(0xFFFFFFFFU, needs_rest(rows.scales[0]) || needs_rest(rows.scales[1]));
  const bool all_present = __all_sync(0xFFFFFFFFU, rows.present[0] && rows.present[1]);
  RowBytes bytes;
  uint32_t lower[2][4];
  uint32_t upper[2][4];
  read_rows<0, kEarlyBlocks>(unit, rows, all_present, bytes);
  score_block<kHeads, 0>(scores, unit, bytes, rows, with_rest, lower, upper, q_descriptor);
  score_block<kHeads, 1>(scores, unit, bytes, rows, with_rest, lower, upper, q_descriptor);
  score_block<kHeads, 2>(scores, unit, bytes, rows, with_rest, lower, upper, q_descriptor);
  read_rows<kEarlyBlocks, kSegments>(unit, rows, all_present, bytes);
  __syncwarp();  // every lane has read before anyone writes over the rows
  score_block<kHeads, 3>(scores, unit, bytes, rows, with_rest, lower, upper, q_descriptor);
  score_block<kHeads, 4>(scores, unit, bytes, rows, with_rest, lower, upper, q_descriptor);
  score_block<kHeads, 5>(scores, unit, bytes, rows, with_rest, lower, upper, q_descriptor);
  score_block<kHeads, 6>(scores, unit, bytes, rows, with_rest, lower, upper, q_descriptor);
  score_block<kHeads, 7>(scores, unit, bytes, rows, with_rest, lower, upper, q_descriptor);
  ptx::wgmma_wait<0>();
  ptx::pin_registers(scores);
}

/// One exchange between lanes `kDistance` apart: each keeps half of its columns while it has
/// several.
template <int kKept, int kDistance, int kColumns, class Join>
__device__ __forceinline__ void exchange_columns(float (&values)[kColumns], Join join) {
  const bool upper = (threadIdx.x & kDistance) != 0;
  if constexpr (kKept > 0) {
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      const float sent = upper ? values[i] : values[i + kKept];
      const float mine = upper ? values[i + kKept] : values[i];
      values[i] = join(mine, __shfl_xor_sync(0xFFFFFFFFU, sent, kDistance));
    }
  } else {
    values[0] = join(values[0], __shfl_xor_sync(0xFFFFFFFFU, values[0], kDistance));
  }
}

/// Reduces columns over the eight lanes that share them, in the order of lane distances 16, 8, 4.
/// values[k] is column owned_head<kHeads>(k) afterwards.
template <int kColumns, class Join>
__device__ __forceinline__ void reduce_columns(float (&values)[kColumns], Join join) {
  exchange_columns<kColumns / 2, 16>(values, join);
  exchange_columns<kColumns / 4, 8>(values, join);
  exchange_columns<kColumns / 8, 4>(values, join);
}

/// Head of the k-th column a lane keeps after reduce_columns.
template <int kHeads>
__device__ __forceinline__ int owned_head(int k) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kColumns = kHeads / 4;
  const int column = k + ((lane & 16) != 0 ? kColumns / 2 : 0) +
                     ((lane & 8) != 0 ? kColumns / 4 : 0) + ((lane & 4) != 0 ? kColumns / 8 : 0);
  return 8 * (column / 2) + 2 * (lane % 4) + column % 2;
}

template <int kHeads>
struct ScoreState {
  float sums[AttentionShape<kHeads>::kOwned];     // of this warp's rows, for owned heads
  float maximum[AttentionShape<kHeads>::kOwned];  // to which the sums refer
};

/// Joins the tile's maxima with those of the tiles before and publishes maximum and factor.
template <int kHeads>
__device__ __forceinline__ void publish_maximum(AttentionStats<kHeads>& stats,
                                                int index,
                                                float scale) {
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  if (thread < kHeads) {
    float old = kNoMaximum;
    if (index > 0) {
      ptx::barrier_wait_or_leave(&stats.ranked[(index - 1) & 1], ((index - 1) >> 1) & 1);
      old = stats.maximum[(index - 1) % kStatSlots][thread];
    }
    const float tile = fmaxf(
        fmaxf(stats.tile_maximum[index & 1][0][thread], stats.tile_maximum[index & 1][1][thread]),
        fmaxf(stats.tile_maximum[index & 1][2][thread], stats.tile_maximum[index & 1][3][thread]));
    const float now = fmaxf(old, tile * scale);
    const float factor = ptx::exp2_fast(old - now);
    stats.maximum[index % kStatSlots][thread] = now;
    stats.factor[index % kStatSlots][thread] = factor;
    constexpr uint32_t kMask = kHeads >= 32 ? 0xFFFFFFFFU : (1U << (kHeads % 32)) - 1U;
    const bool changed = __any_sync(kMask, factor != 1.0F);
    if (thread % 32 == 0) {
      stats.changed[index % kStatSlots] = changed ? 1 : 0;
    }
    ptx::barrier_arrive(&stats.ranked[index & 1]);
  }
}

/// Turns scores into weights relative to the running maximum, publishes them and adds them up.
template <int kHeads>
__device__ __forceinline__ void weigh_rows(AttentionStats<kHeads>& stats,
                                           float (&scores)[kHeads / 2],
                                           const bool (&present)[2],
                                           int group,
                                           int index,
                                           float scale,
                                           uint8_t* weights,
                                           ptx::Barrier* full,
                                           ScoreState<kHeads>& state) {
  constexpr int kColumns = AttentionShape<kHeads>::kColumns;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  float column[kColumns];
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const float upper = present[0] ? scores[4 * (i / 2) + i % 2] : kNoMaximum * 1e6F;
    const float lower = present[1] ? scores[4 * (i / 2) + 2 + i % 2] : kNoMaximum * 1e6F;
    column[i] = fmaxf(upper, lower);
  }
  reduce_columns(column, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
  for (int k = 0; k < AttentionShape<kHeads>::kOwned; ++k) {
    stats.tile_maximum[index & 1][warp][owned_head<kHeads>(k)] = column[k];
  }
  ptx::named_barrier_sync(1 + group, kGroupThreads);
  publish_maximum<kHeads>(stats, index, scale);
  ptx::named_barrier_sync(1 + group, kGroupThreads);
  const float* maximum = stats.maximum[index % kStatSlots];
#pragma unroll
  for (int c = 0; c < kHeads / 8; ++c) {
    const float2 top = *reinterpret_cast<const float2*>(maximum + 8 * c + 2 * (lane % 4));
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const float weight =
          ptx::exp2_fast(__fmaf_rn(scores[4 * c + r], scale, r % 2 ? -top.y : -top.x));
      scores[4 * c + r] = present[r / 2] ? weight : 0.0F;
    }
    column[2 * c] = __fadd_rn(scores[4 * c], scores[4 * c + 2]);
    column[2 * c + 1] = __fadd_rn(scores[4 * c + 1], scores[4 * c + 3]);
  }
  // Lane 8 i + n addresses head n of tile i: tiles are (c, upper rows), (c, lower rows), (c + 1,
  // ...).
  if constexpr (kHeads == 8) {
    const uint32_t head = lane % 8;
    const uint32_t half = lane / 8 % 2;
    ptx::store_columns_x2(
        ptx::shared_address(weights) + ptx::swizzled_128(head, (warp * 2 + half) * 16),
        ptx::pack_bf16(scores[0], scores[1]),
        ptx::pack_bf16(scores[2], scores[3]));
  } else {
#pragma unroll
    for (int c = 0; c < kHeads / 8; c += 2) {
      const uint32_t head = 8 * (c + lane / 16) + lane % 8;
      const uint32_t half = lane / 8 % 2;
      ptx::store_columns_x4(
          ptx::shared_address(weights) + ptx::swizzled_128(head, (warp * 2 + half) * 16),
          ptx::pack_bf16(scores[4 * c], scores[4 * c + 1]),
          ptx::pack_bf16(scores[4 * c + 2], scores[4 * c + 3]),
          ptx::pack_bf16(scores[4 * c + 4], scores[4 * c + 5]),
          ptx::pack_bf16(scores[4 * c + 6], scores[4 * c + 7]));
    }
  }
  ptx::fence_async_shared();
  ptx::barrier_arrive(full);
  reduce_columns(column, [](float a, float b) { return __fadd_rn(a, b); });
#pragma unroll
  for (int k = 0; k < AttentionShape<kHeads>::kOwned; ++k) {
    const float now = maximum[owned_head<kHeads>(k)];
    state.sums[k] = __fmaf_rn(state.sums[k], ptx::exp2_fast(state.maximum[k] - now), column[k]);
    state.maximum[k] = now;
  }
}

template <int kHeads>
__device__ __forceinline__ void store_sums(AttentionStats<kHeads>& stats,
                                           const ScoreState<kHeads>& state,
                                           int parity) {
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
#pragma unroll
  for (int k = 0; k < AttentionShape<kHeads>::kOwned; ++k) {
    const int head = owned_head<kHeads>(k);
    stats.sums[parity][warp][head] = state.sums[k];
    if (warp == 0) {
      stats.sum_maximum[parity][head] = state.maximum[k];
    }
  }
}

/// Maximum and sum over tiles of both parities, for the joining that follows.
template <int kHeads>
__device__ __forceinline__ void total_statistics(const AttentionShared<kHeads>& shared) {
  const AttentionStats<kHeads>& stats = shared.stats();
  const int head = static_cast<int>(threadIdx.x);
  if (head < kHeads) {
    const float maximum = fmaxf(stats.sum_maximum[0][head], stats.sum_maximum[1][head]);
    float sum = 0;
    for (int parity = 0; parity < 2; ++parity) {
      const float(&warps)[4][kHeads] = stats.sums[parity];
      const float rows = __fadd_rn(__fadd_rn(warps[0][head], warps[1][head]),
                                   __fadd_rn(warps[2][head], warps[3][head]));
      sum = __fmaf_rn(rows, ptx::exp2_fast(stats.sum_maximum[parity][head] - maximum), sum);
    }
    shared.totals(static_cast<int>(ptx::cluster_rank()))[head] = make_float2(maximum, sum);
  }
}

template <int kHeads>
__device__ __forceinline__ void score_tiles(const SparseAttentionParams& params,
                                            const AttentionShared<kHeads>& shared,
                                            int32_t tiles,
                                            int group) {
  constexpr int kBuffers = AttentionShape<kHeads>::kBuffers;
  constexpr int kScoreGroups = AttentionShape<kHeads>::kScoreGroups;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  AttentionStats<kHeads>& stats = shared.stats();
  const float scale = params.scale * ptx::kLog2E;
  const uint64_t q_descriptor = ptx::k_major_descriptor(shared.q_block(0));
  ScoreState<kHeads> state;  // of this group's tiles, which are of one parity
#pragma unroll
  for (int k = 0; k < AttentionShape<kHeads>::kOwned; ++k) {
    state.sums[k] = 0;
    state.maximum[k] = kNoMaximum;
  }
  if (group < tiles) {
    ptx::barrier_wait_or_leave(&stats.q_ready, 0);
  }
  for (int32_t index = group; index < tiles; index += kScoreGroups) {
    const int buffer = index % kBuffers;
    ptx::barrier_wait_or_leave(&stats.fetched[buffer], (index / kBuffers) & 1);
    TileRows rows;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = warp * kUnitRows + lane / 4 + 8 * h;
      rows.scales[h] = *shared.scales(buffer, row);
      rows.present[h] = row_present(stats, buffer, row);
    }
    float scores[kHeads / 2];
    score_rows<kHeads>(scores, shared.unit(buffer, warp), rows, q_descriptor);
    weigh_rows<kHeads>(stats,
                       scores,
                       rows.present,
                       group,
                       index,
                       scale,
                       shared.weights(buffer),
                       &stats.full[buffer],
                       state);
  }
  store_sums<kHeads>(stats, state, group);
  ptx::named_barrier_sync(kScoreBarrier, kScoreGroups * kGroupThreads);
  total_statistics<kHeads>(shared);
  ptx::named_barrier_arrive(kTotalsBarrier,
                            AttentionShape<kHeads>::kFirstOutputThread + kOutputThreads);
}

}  // namespace baleen::kernels
