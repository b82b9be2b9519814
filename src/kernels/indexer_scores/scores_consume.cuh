#pragma once
// The warp groups of the index scores kernel that multiply key pages with queries, sum the heads
// and store. Used by indexer_scores_sm90.cu.

#include <cstdint>

#include "kernels/indexer_scores/page_walk.cuh"
#include "kernels/indexer_scores/scores_arena.cuh"
#include "kernels/indexer_scores/scores_product.cuh"
#include "kernels/ptx/opaque.cuh"

namespace baleen::kernels {

/// Every `groups`-th page of the walk from `group` on, for all queries. One warp group.
template <bool kSingleQuery, bool kHoldsWeights>
__device__ void consume(const IndexerScoresParams& params,
                        PageWalk walk,
                        const ScoresArena& arena,
                        uint32_t stages,
                        uint32_t group,
                        uint32_t groups) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t row = threadIdx.x % 128 / 32 * 16 + lane / 4;
  const auto q = static_cast<uint32_t>(params.queries_per_request);
  const bool to_bf16 = params.rounding == ScoreRounding::kBf16;
  uint32_t all_keys = static_cast<uint32_t>(ptx::k_major_descriptor(arena.pages));
  ptx::Barrier* all_full = arena.full;
  ptx::Barrier* all_empty = arena.empty;
  uint32_t all_scales = ptx::shared_address(arena.pages) + scale_place(row);
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
    uint32_t all_heads = static_cast<uint32_t>(
        ptx::k_major_descriptor(arena.queries + query_place.slot * q * kQueryBytes));
    uint32_t weights =
        ptx::shared_address(arena.weights) + query_place.slot * q * kWeightBytes + lane % 4 * 8;
    ptx::keep_in_register(all_heads);
    ptx::keep_in_register(weights);
    ptx::keep_in_register(out);
    ptx::keep_in_register(only_length);
    float2 only_weights[8];
    if constexpr (kSingleQuery && kHoldsWeights) {
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        only_weights[c] = two_weights(weights, c);
      }
    }
    int32_t i = skip;
    for (; i < count; i += static_cast<int32_t>(groups)) {
      ptx::barrier_wait(all_full + place.slot, place.round);
      const uint32_t keys = __shfl_sync(0xFFFFFFFFU, all_keys + place.slot * (kStageBytes >> 4), 0);
      const uint32_t scales = all_scales + place.slot * kStageBytes;
      const ScoreTile tile{make_float2(__uint_as_float(ptx::load_shared_4(scales)),
                                       __uint_as_float(ptx::load_shared_4(scales + 32))),
                           first_entry + i * entry_step};
      // Behind the products: what they left is pinned, so that its sums come behind the arrival.
      const auto release = [&](auto& dots) {
        ptx::barrier_arrive_elected(all_empty + place.slot,
                                    __float_as_uint(tile.scale.x) & __float_as_uint(tile.scale.y),
                                    lane == 0);
        ptx::pin_registers(dots);
      };
      if constexpr (kSingleQuery) {
        float dots[32];
        start_product<1>(dots, keys, all_heads);
        finish_product(dots);
        release(dots);
        store_scores(to_bf16, out, only_length, tile, sum_heads(dots, 0, [&](int c) {
                       return kHoldsWeights ? only_weights[c] : two_weights(weights, c);
                     }));
      } else {
        for (uint32_t j = 0; j < q; j += 2) {
          const uint32_t heads = all_heads + j * (kQueryBytes >> 4);
          const uint32_t a = weights + j * kWeightBytes;
          float* const first_row = out + j * params.score_stride;
          const int32_t first_length = lengths[j];
          const auto weight = [&](int c) { return two_weights(a, c); };
          if (j + 1 == q) {
            float dots[32];
            start_product<1>(dots, keys, heads);
            finish_product(dots);
            release(dots);
            store_scores(to_bf16, first_row, first_length, tile, sum_heads(dots, 0, weight));
          } else {
            const int32_t second_length = lengths[j + 1];
            float dots[64];
            start_product<2>(dots, keys, heads);
            finish_product(dots);
            if (j + 2 == q) {
              release(dots);
            }
            store_scores(to_bf16, first_row, first_length, tile, sum_heads(dots, 0, weight));
            const auto second_weight = [&](int c) { return two_weights(a + kWeightBytes, c); };
            store_scores(to_bf16,
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
