#pragma once
// The warp groups of the index scores kernel that multiply key pages with queries, sum the heads
// and store. Used by indexer_scores_sm90.cu.

#include <cstdint>

#include "kernels/indexer_scores/page_walk.cuh"
#include "kernels/indexer_scores/scores_arena.cuh"
#include "kernels/ptx/convert.cuh"
#include "kernels/ptx/loaded_arrive.cuh"
#include "kernels/ptx/opaque.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace baleen::kernels {

/// Products of one key tile with `kQueries` query tiles.
template <int kQueries>
__device__ __forceinline__ void multiply(float (&dots)[32 * kQueries],
                                         uint64_t keys,
                                         uint64_t heads) {
  ptx::pin_registers(dots);
  ptx::wgmma_fence();
#pragma unroll
  for (uint32_t step = 0; step < 4; ++step) {
    ptx::Wgmma<ptx::E4m3, 64 * kQueries>::shared(dots,
                                                 ptx::advance_descriptor(keys, step * 32),
                                                 ptx::advance_descriptor(heads, step * 32),
                                                 step > 0 ? 1 : 0);
  }
  ptx::wgmma_commit();
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

/// What a thread needs to write the scores of one key tile.
struct ScoreTile {
  float2 scale;   // of this thread's rows
  int32_t entry;  // of its upper row
};

__device__ __forceinline__ void store_scores(const IndexerScoresParams& params,
                                             float* row,
                                             int32_t length,
                                             const ScoreTile& tile,
                                             float2 sum) {
  if (threadIdx.x % 4 != 0) {
    return;
  }
  float upper = sum.x * tile.scale.x;
  float lower = sum.y * tile.scale.y;
  if (params.rounding == ScoreRounding::kBf16) {
    const uint32_t packed = ptx::pack_bf16(upper, lower);
    upper = ptx::low_bf16(packed);
    lower = ptx::high_bf16(packed);
  }
  const float none = __int_as_float(static_cast<int>(0xFF800000U));
  row[tile.entry] = tile.entry < length ? upper : none;
  row[tile.entry + 8] = tile.entry + 8 < length ? lower : none;
}

/// Every `groups`-th page of the walk from `group` on, for all queries. One warp group.
template <bool kSingleQuery>
__device__ void consume(const IndexerScoresParams& params,
                        PageWalk walk,
                        const ScoresArena& arena,
                        uint32_t stages,
                        uint32_t group,
                        uint32_t groups) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t row = threadIdx.x % 128 / 32 * 16 + lane / 4;
  const auto q = static_cast<uint32_t>(params.queries_per_request);
  uint64_t all_keys = ptx::k_major_descriptor(arena.tiles);
  ptx::Barrier* all_full = arena.full;
  ptx::Barrier* all_empty = arena.empty;
  const float* all_scales = arena.scales + row;
  ptx::keep_in_register(all_keys);
  ptx::keep_in_register(all_full);
  ptx::keep_in_register(all_empty);
  ptx::keep_in_register(all_scales);
  ptx::keep_in_register(stages);
  RingPlace place{.slot = group};
  RingPlace query_place;
  int32_t skip = static_cast<int32_t>(group);  // pages of this run before the next own one
  while (walk.more()) {
    const int32_t count = walk.run();
    const int32_t query_row = walk.request() * params.queries_per_request;
    const int32_t first_entry =
        walk.page() * static_cast<int32_t>(kIndexPageEntries) + static_cast<int32_t>(row);
    const int32_t entry_step = walk.step() * static_cast<int32_t>(kIndexPageEntries);
    walk.advance(count);
    const int32_t* lengths = params.lengths + query_row;
    int32_t only_length = lengths[0];
    float* out = params.scores + query_row * params.score_stride;
    ptx::barrier_wait(&arena.query_full[query_place.slot], query_place.round);
    uint64_t all_heads =
        ptx::k_major_descriptor(arena.queries + query_place.slot * q * kQueryBytes);
    const float2* weights =
        reinterpret_cast<const float2*>(arena.weights + query_place.slot * q * kScoreHeads) +
        lane % 4;
    ptx::keep_in_register(all_heads);
    ptx::keep_in_register(weights);
    ptx::keep_in_register(out);
    ptx::keep_in_register(only_length);
    float2 only_weights[8];
    if constexpr (kSingleQuery) {
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        only_weights[c] = weights[c * 4];
      }
    }
    int32_t i = skip;
    for (; i < count; i += static_cast<int32_t>(groups)) {
      ptx::barrier_wait(all_full + place.slot, place.round);
      const uint64_t keys = ptx::advance_descriptor(all_keys, place.slot * kTileBytes);
      const float* scales = all_scales + place.slot * kIndexPageEntries;
      const ScoreTile tile{make_float2(scales[0], scales[8]), first_entry + i * entry_step};
      const auto release = [&] {
        __syncwarp();
        if (lane == 0) {
          ptx::barrier_arrive_loaded(all_empty + place.slot,
                                     __float_as_uint(tile.scale.x) & __float_as_uint(tile.scale.y));
        }
      };
      if constexpr (kSingleQuery) {
        float dots[32];
        multiply<1>(dots, keys, all_heads);
        release();
        store_scores(params, out, only_length, tile, sum_heads(dots, 0, [&](int c) {
                       return only_weights[c];
                     }));
      } else {
        for (uint32_t j = 0; j < q; j += 2) {
          const uint64_t heads = ptx::advance_descriptor(all_heads, j * kQueryBytes);
          const float2* a = weights + j * (kScoreHeads / 2);
          float* const first_row = out + j * params.score_stride;
          const int32_t first_length = lengths[j];
          const auto weight = [&](int c) { return a[c * 4]; };
          if (j + 1 == q) {
            float dots[32];
            multiply<1>(dots, keys, heads);
            release();
            store_scores(params, first_row, first_length, tile, sum_heads(dots, 0, weight));
          } else {
            const int32_t second_length = lengths[j + 1];
            float dots[64];
            multiply<2>(dots, keys, heads);
            if (j + 2 == q) {
              release();
            }
            store_scores(params, first_row, first_length, tile, sum_heads(dots, 0, weight));
            const auto second_weight = [&](int c) { return a[kScoreHeads / 2 + c * 4]; };
            store_scores(params,
                         first_row + params.score_stride,
                         second_length,
                         tile,
                         sum_heads(dots, 1, second_weight));
          }
        }
      }
      place.next(groups, stages);
    }
    skip = i - count;
    __syncwarp();
    if (lane == 0) {
      ptx::barrier_arrive(&arena.query_empty[query_place.slot]);
    }
    query_place.next(1, kQuerySlots);
  }
}

}  // namespace baleen::kernels
