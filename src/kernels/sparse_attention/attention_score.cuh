#pragma once
// The first warp groups of the attention kernel: fetch a tile's rows, expand them to bf16
// (registers for the scores, shared memory for the output product), score them, and publish maxima
// and weights. Two groups take alternate tiles. Sums of even and odd tiles are kept apart in either
// case.
//
//   score_tiles<kHeads>(params, shared, query, range, group);
//
// S^T[64 rows, heads] = rows (register operand) * q^T. Lane l of warp w holds rows 16 w + l / 4 and
// + 8 and, of each segment of 64 bytes, bytes 16 (l % 4) .. + 15; it fetches exactly these bytes,
// so no barrier stands between fetch and use.

#include <cstdint>

#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/convert.cuh"
#include "kernels/ptx/exp2.cuh"
#include "kernels/ptx/prefetch.cuh"
#include "kernels/ptx/store_matrix.cuh"
#include "kernels/sparse_attention/attention_tile.cuh"
#include "kernels/sparse_attention/row_expand.cuh"
#include "kernels/sparse_attention/row_source.cuh"

namespace baleen::kernels {

inline constexpr int kPrefetchTiles = 2;  // of the own group, beyond the one being fetched

/// The two rows of a thread in one tile.
struct TileRows {
  bool present[2];
  uint2 scales[2];
};

__device__ __forceinline__ int32_t tile_row(const SparseAttentionParams& params,
                                            const TileRange& range,
                                            int32_t query,
                                            int32_t tile,
                                            int32_t row_in_tile) {
  return tile < range.first_tiles
             ? source_row(
                   params.first, query, tile * kAttentionTileRows + row_in_tile, range.first_length)
             : source_row(params.second,
                          query,
                          (tile - range.first_tiles) * kAttentionTileRows + row_in_tile,
                          range.second_length);
}

/// Starts the copies of this thread's bytes of `tile` into its warp's unit; missing rows become 0.
__device__ __forceinline__ TileRows fetch_rows(const SparseAttentionParams& params,
                                               const TileRange& range,
                                               int32_t query,
                                               int32_t tile,
                                               uint8_t* unit) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const KvPoolView& pool = tile < range.first_tiles ? params.first.pool : params.second.pool;
  TileRows rows;
  int32_t row[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    row[h] = tile_row(params, range, query, tile, warp * kUnitRows + lane / 4 + 8 * h);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    rows.present[h] = row[h] >= 0;
    const RowAddress at = row_address(pool, rows.present[h] ? row[h] : 0);
    const uint32_t bytes = rows.present[h] ? 16 : 0;
    const uint8_t* from = at.values + 16 * (lane % 4);
    uint8_t* to = unit + kSegmentBegin + (lane / 4 + 8 * h) * 64 + 16 * (lane % 4);
#pragma unroll
    for (int s = 0; s < kSegments; ++s) {
      ptx::async_copy_16(to + s * kSegmentBytes, from + 64 * s, bytes);
    }
    rows.scales[h] =
        rows.present[h] ? __ldg(reinterpret_cast<const uint2*>(at.scales)) : make_uint2(0, 0);
  }
  ptx::async_copy_commit();
  return rows;
}

/// Asks L2 for the rows of a tile that will be fetched later.
__device__ __forceinline__ void prefetch_rows(const SparseAttentionParams& params,
                                              const TileRange& range,
                                              int32_t query,
                                              int32_t tile) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  if (tile >= range.end || lane % 4 > 1) {
    return;
  }
  const KvPoolView& pool = tile < range.first_tiles ? params.first.pool : params.second.pool;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int32_t row = tile_row(params, range, query, tile, warp * kUnitRows + lane / 4 + 8 * h);
    if (row >= 0) {
      const RowAddress at = row_address(pool, row);
      if (lane % 4 == 0) {
        ptx::bulk_prefetch_l2(at.values, kKvValueBytes);
      } else {
        ptx::prefetch_l2(at.scales);
      }
    }
  }
}

/// The thread's 16 bytes of two rows in a segment.
struct RowPair {
  uint4 row[2];
};

__device__ __forceinline__ RowPair read_segment(const uint8_t* unit, int segment) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint8_t* from =
      unit + kSegmentBegin + segment * kSegmentBytes + lane / 4 * 64 + lane % 4 * 16;
  return {{*reinterpret_cast<const uint4*>(from), *reinterpret_cast<const uint4*>(from + 8 * 64)}};
}

/// Expands half a block (32 dims) of both rows into the operands of two products.
template <int kBlock, int kHalf>
__device__ __forceinline__ void expand_half(const RowPair& bytes,
                                            const TileRows& rows,
                                            bool with_rest,
                                            uint32_t (&operand)[2][4]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if constexpr (kBlock < kKvScales) {
      const RowScale scale = row_scale(scale_byte(rows.scales[h], kBlock));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t codes = kHalf == 0 ? (i == 0 ? bytes.row[h].x : bytes.row[h].y)
                                          : (i == 0 ? bytes.row[h].z : bytes.row[h].w);
        BfQuad quad = expand_e4m3(codes, scale.multiplier);
        if (with_rest) {
          quad.even = ptx::multiply_bf16(quad.even, scale.rest);
          quad.odd = ptx::multiply_bf16(quad.odd, scale.rest);
        }
        operand[i][h] = quad.even;
        operand[i][2 + h] = quad.odd;
      }
    } else {  // rope dims are bf16 already
      operand[0][h] = bytes.row[h].x;
      operand[0][2 + h] = bytes.row[h].y;
      operand[1][h] = bytes.row[h].z;
      operand[1][2 + h] = bytes.row[h].w;
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
                                            const TileRows& rows,
                                            bool with_rest,
                                            uint32_t (&lower)[2][4],
                                            uint32_t (&upper)[2][4],
                                            uint64_t q_descriptor) {
  RowPair bytes = read_segment(unit, kBlock);
  RowPair rope_bytes;
  if constexpr (kBlock >= kKvScales) {
    rope_bytes = read_segment(unit, kBlock + 1);
  } else {
    rope_bytes = bytes;
  }
  __syncwarp();  // every lane has read its segment before anyone overwrites it
  expand_half<kBlock, 0>(bytes, rows, with_rest, lower);
  score_half<kHeads, kBlock, 0>(scores, unit, lower, q_descriptor);
  expand_half<kBlock, 1>(rope_bytes, rows, with_rest, upper);
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
  uint32_t lower[2][4];
  uint32_t upper[2][4];
  score_block<kHeads, 0>(scores, unit, rows, with_rest, lower, upper, q_descriptor);
  score_block<kHeads, 1>(scores, unit, rows, with_rest, lower, upper, q_descriptor);
  score_block<kHeads, 2>(scores, unit, rows, with_rest, lower, upper, q_descriptor);
  score_block<kHeads, 3>(scores, unit, rows, with_rest, lower, upper, q_descriptor);
  score_block<kHeads, 4>(scores, unit, rows, with_rest, lower, upper, q_descriptor);
  score_block<kHeads, 5>(scores, unit, rows, with_rest, lower, upper, q_descriptor);
  score_block<kHeads, 6>(scores, unit, rows, with_rest, lower, upper, q_descriptor);
  score_block<kHeads, 7>(scores, unit, rows, with_rest, lower, upper, q_descriptor);
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
      ptx::barrier_wait(&stats.ranked[(index - 1) & 1], ((index - 1) >> 1) & 1);
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
      stats.changed[index % kStatSlots][thread / 32] = changed ? 1 : 0;
    }
    ptx::barrier_arrive(&stats.ranked[index & 1]);
  }
}

template <int kHeads>
__device__ __forceinline__ void weigh_rows(AttentionStats<kHeads>& stats,
                                           float (&scores)[kHeads / 2],
                                           const bool (&present)[2],
                                           int group,
                                           int index,
                                           float scale,
                                           uint8_t* weights,
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

template <int kHeads>
__device__ __forceinline__ void score_tiles(const SparseAttentionParams& params,
                                            const AttentionShared<kHeads>& shared,
                                            int32_t query,
                                            const TileRange& range,
                                            int group) {
  constexpr int kBuffers = AttentionShape<kHeads>::kBuffers;
  constexpr int kScoreGroups = AttentionShape<kHeads>::kScoreGroups;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  AttentionStats<kHeads>& stats = shared.stats();
  const float scale = params.scale * ptx::kLog2E;
  const uint64_t q_descriptor = ptx::k_major_descriptor(shared.q_block(0));
  const int32_t tiles = range.end - range.begin;
  ScoreState<kHeads> state;  // of the tile in hand's parity
  ScoreState<kHeads> other;
#pragma unroll
  for (int k = 0; k < AttentionShape<kHeads>::kOwned; ++k) {
    state.sums[k] = other.sums[k] = 0;
    state.maximum[k] = other.maximum[k] = kNoMaximum;
  }
  TileRows rows;
  if (group < tiles) {
    rows = fetch_rows(params, range, query, range.begin + group, shared.unit(group, warp));
    for (int ahead = 1; ahead <= kPrefetchTiles; ++ahead) {
      prefetch_rows(params, range, query, range.begin + group + kScoreGroups * ahead);
    }
    ptx::barrier_wait(&stats.q_ready, 0);
  }
  for (int32_t index = group; index < tiles; index += kScoreGroups) {
    const int buffer = index % kBuffers;
    const int32_t next = index + kScoreGroups;
    const bool present[2] = {rows.present[0], rows.present[1]};
    float scores[kHeads / 2];
    ptx::async_copy_wait<0>();
    score_rows<kHeads>(scores, shared.unit(buffer, warp), rows, q_descriptor);
    const auto fetch_next = [&] {
      if (next < tiles) {
        const int next_buffer = next % kBuffers;
        if (next >= kBuffers) {
          ptx::barrier_wait(&stats.free[next_buffer], (next / kBuffers - 1) & 1);
        }
        rows = fetch_rows(params, range, query, range.begin + next, shared.unit(next_buffer, warp));
        prefetch_rows(params, range, query, range.begin + next + kScoreGroups * kPrefetchTiles);
      }
    };
    if constexpr (kBuffers > kScoreGroups) {
      fetch_next();
    }
    weigh_rows<kHeads>(stats, scores, present, group, index, scale, shared.weights(buffer), state);
    ptx::fence_async_shared();
    ptx::barrier_arrive(&stats.full[buffer]);
    if constexpr (kBuffers <= kScoreGroups) {
      fetch_next();
    }
    if constexpr (kScoreGroups == 1) {
      const ScoreState<kHeads> kept = state;
      state = other;
      other = kept;
    }
  }
  if constexpr (kScoreGroups == 1) {
    const bool odd = tiles % 2 != 0;
    store_sums<kHeads>(stats, odd ? other : state, 0);
    store_sums<kHeads>(stats, odd ? state : other, 1);
  } else {
    store_sums<kHeads>(stats, state, group);
  }
}

}  // namespace baleen::kernels
