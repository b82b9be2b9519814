#pragma once
// The warps of the index scores kernel that fetch: key pages with their scales, and the queries of
// every request. Used by indexer_scores_sm90.cu.

#include <cstdint>

#include "kernels/indexer_scores/page_walk.cuh"
#include "kernels/indexer_scores/scores_arena.cuh"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/opaque.cuh"
#include "kernels/ptx/pdl.cuh"
#include "kernels/ptx/tensor_copy.cuh"

namespace baleen::kernels {

/// Lane l's page number of the walk's next 32 pages.
__device__ __forceinline__ int32_t page_ids(const IndexerScoresParams& params,
                                            const PageWalk& walk) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t* row = params.page_table + walk.request() * params.page_table_stride + walk.page();
  return lane < walk.run() ? row[lane * walk.step()] : 0;
}

/// The pages of the walk, keys and scales by one copy each. One warp.
__device__ void fetch_keys(const IndexerScoresParams& params,
                           const CUtensorMap* map,
                           PageWalk walk,
                           const ScoresArena& arena,
                           uint32_t stages,
                           int32_t ids) {
  const uint32_t lane = threadIdx.x % 32;
  uint8_t* pages = arena.pages;
  ptx::Barrier* all_full = arena.full;
  ptx::Barrier* all_empty = arena.empty;
  ptx::keep_in_register(pages);
  ptx::keep_in_register(all_full);
  ptx::keep_in_register(all_empty);
  ptx::keep_in_register(stages);
  RingPlace place;
  bool waited = params.stable_entries == nullptr;
  while (walk.more()) {
    const int32_t count = min(32, walk.run());
    const int32_t request = walk.request();
    const int32_t first_page = walk.page();
    const int32_t step = walk.step();
    walk.advance(count);
    const int32_t next_ids = walk.more() ? page_ids(params, walk) : 0;
    // Pages that the running step may still write end the run-ahead.
    const int32_t stable_pages =
        waited ? 0x7FFFFFFF
               : params.stable_entries[request] / static_cast<int32_t>(kIndexPageEntries);
    for (int32_t i = 0; i < count; ++i) {
      const int32_t id = __shfl_sync(0xFFFFFFFFU, ids, i);
      if (!waited && first_page + i * step >= stable_pages) {
        ptx::wait_for_predecessor();
        waited = true;
      }
      if (lane == 0) {
        ptx::Barrier* const full = all_full + place.slot;
        ptx::barrier_wait(all_empty + place.slot, place.round ^ 1);
        ptx::barrier_expect_bytes(full, kIndexPageBytes);
        ptx::tensor_load_3d(
            pages + place.slot * kStageBytes, map, 0, 0, id, full, ptx::kEvictFirst);
      }
      place.next(1, stages);
    }
    __syncwarp();
    ids = next_ids;
  }
}

/// Queries and head weights of every request of the walk. One warp.
__device__ void fetch_queries(const IndexerScoresParams& params,
                              const CUtensorMap* map,
                              PageWalk walk,
                              const ScoresArena& arena) {
  const uint32_t lane = threadIdx.x % 32;
  const auto q = static_cast<uint32_t>(params.queries_per_request);
  RingPlace place;
  while (walk.more()) {
    if (lane == 0) {
      ptx::barrier_wait(&arena.query_empty[place.slot], place.round ^ 1);
      ptx::Barrier* full = &arena.query_full[place.slot];
      ptx::barrier_expect_bytes(full, q * (kQueryBytes + kWeightBytes));
      const int32_t row = walk.request() * params.queries_per_request;
      for (uint32_t j = 0; j < q; ++j) {
        ptx::tensor_load_2d(arena.queries + (place.slot * q + j) * kQueryBytes,
                            map,
                            0,
                            (row + static_cast<int32_t>(j)) * static_cast<int32_t>(kScoreHeads),
                            full);
      }
      ptx::bulk_load(arena.weights + place.slot * q * kScoreHeads,
                     params.head_weights + int64_t{row} * kScoreHeads,
                     q * kWeightBytes,
                     full);
    }
    __syncwarp();
    walk.advance(walk.run());
    place.next(1, kQuerySlots);
  }
}

}  // namespace baleen::kernels
