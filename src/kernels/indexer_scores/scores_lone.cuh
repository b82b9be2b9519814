#pragma once
// Index scores of one query of one request: the usual decode step of a single reader. Everything a
// block needs is known early (its page numbers do not depend on the length), so that its first
// pages are asked for as soon as their numbers are there; one warp fetches, the others multiply.
// The bits are those of the kernel for several requests. Used by indexer_scores_sm90.cu.

#include <cstdint>

#include "kernels/indexer_scores/scores_arena.cuh"
#include "kernels/indexer_scores/scores_product.cuh"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/opaque.cuh"
#include "kernels/ptx/pdl.cuh"
#include "kernels/ptx/tensor_copy.cuh"

namespace baleen::kernels {

inline constexpr int32_t kLoneGroups = 2;  // warp groups that multiply
inline constexpr uint32_t kLoneThreads = kLoneGroups * 128 + 32;
inline constexpr uint32_t kLoneStartBarrier = 1;  // 0 is __syncthreads

struct LoneArena {
  uint8_t* pages;  // [stages] in the 128-byte swizzle, kStageBytes apart, 1,024-byte aligned
  uint8_t* query;
  ptx::Barrier* full;  // [stages]
  ptx::Barrier* empty;
  ptx::Barrier* query_full;

  __device__ LoneArena(uint8_t* memory, uint32_t stages)
      : pages(memory),
        query(pages + stages * kStageBytes),
        full(reinterpret_cast<ptx::Barrier*>(query + kQueryBytes)),
        empty(full + stages),
        query_full(empty + stages) {}
  static std::size_t bytes(uint32_t stages) {
    return 1024 + stages * (kStageBytes + 16) + kQueryBytes + 8;
  }
};

__device__ __forceinline__ int32_t lone_pages(const IndexerScoresParams& params) {
  return (params.lengths[0] + static_cast<int32_t>(kIndexPageEntries) - 1) /
         static_cast<int32_t>(kIndexPageEntries);
}

/// The warp that fetches: page i of this block is page blockIdx.x + i * gridDim.x of the request.
__device__ __forceinline__ void fetch_lone(const IndexerScoresParams& params,
                                           const CUtensorMap* key_map,
                                           const LoneArena& arena,
                                           uint32_t stages) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const auto step = static_cast<int32_t>(gridDim.x);
  int32_t page = static_cast<int32_t>(blockIdx.x);
  const auto ids_from = [&](int32_t first) {
    const int64_t at = first + int64_t{lane} * step;
    return at < params.page_table_stride ? params.page_table[at] : 0;
  };
  // Loads first: what follows is done while they are on their way.
  int32_t ids = ids_from(page);
  const int32_t length = params.lengths[0];
  const int32_t stable = params.stable_entries == nullptr ? 0x7FFFFFFF : params.stable_entries[0];
  if (lane == 0) {
    ptx::prefetch_tensor_map(key_map);
    for (uint32_t s = 0; s < stages; ++s) {
      ptx::barrier_init(&arena.full[s], 1);
      ptx::barrier_init(&arena.empty[s], 4);
    }
    ptx::fence_barrier_init();
  }
  __syncwarp();
  ptx::named_barrier_arrive(kLoneStartBarrier, kLoneThreads);
  constexpr auto kEntries = static_cast<int32_t>(kIndexPageEntries);
  const int32_t pages = (length + kEntries - 1) / kEntries;
  const int32_t stable_pages = stable / kEntries;  // the running step may still write later ones
  bool waited = params.stable_entries == nullptr;
  RingPlace place;
  while (page < pages) {
    const int32_t next_ids = page + 32 * step < pages ? ids_from(page + 32 * step) : 0;
    for (int32_t i = 0; i < 32 && page < pages; ++i, page += step) {
      const int32_t id = __shfl_sync(0xFFFFFFFFU, ids, i);
      if (!waited && page >= stable_pages) {
        ptx::wait_for_predecessor();
        waited = true;
      }
      if (lane == 0) {
        ptx::Barrier* const full = arena.full + place.slot;
        ptx::barrier_wait(arena.empty + place.slot, place.round ^ 1);
        ptx::barrier_expect_bytes(full, kIndexPageBytes);
        ptx::tensor_load_3d(
            arena.pages + place.slot * kStageBytes, key_map, 0, 0, id, full, ptx::kEvictFirst);
      }
      place.next(1, stages);
    }
    ids = next_ids;
  }
}

/// One warp group: every kLoneGroups-th page of the block from `group` on.
__device__ __forceinline__ void consume_lone(const IndexerScoresParams& params,
                                             const CUtensorMap* query_map,
                                             const LoneArena& arena,
                                             uint32_t stages,
                                             uint32_t group) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t row = threadIdx.x % 128 / 32 * 16 + lane / 4;
  if (params.stable_entries != nullptr) {
    ptx::wait_for_predecessor();
  }
  if (threadIdx.x == 0) {
    ptx::barrier_init(arena.query_full, 1);
    ptx::fence_barrier_init();
    ptx::barrier_expect_bytes(arena.query_full, kQueryBytes);
    ptx::tensor_load_2d(arena.query, query_map, 0, 0, arena.query_full);
  }
  float2 weights[8];
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    weights[c] = reinterpret_cast<const float2*>(params.head_weights)[lane % 4 + c * 4];
  }
  const int32_t length = params.lengths[0];
  const int32_t pages = lone_pages(params);
  uint32_t all_keys = static_cast<uint32_t>(ptx::k_major_descriptor(arena.pages));
  uint32_t heads = static_cast<uint32_t>(ptx::k_major_descriptor(arena.query));
  uint32_t all_scales = ptx::shared_address(arena.pages) + scale_place(row);
  ptx::Barrier* all_full = arena.full;
  ptx::Barrier* all_empty = arena.empty;
  float* out = params.scores;
  uint32_t to_bf16 = params.rounding == ScoreRounding::kBf16 ? 1 : 0;
  ptx::keep_in_register(all_scales);
  ptx::keep_in_register(out);
  ptx::keep_in_register(to_bf16);
  ptx::keep_in_register(stages);
  ptx::named_barrier_sync(kLoneStartBarrier, kLoneThreads);
  ptx::barrier_wait(arena.query_full, 0);
  RingPlace place{.slot = group};
  const auto step = static_cast<int32_t>(gridDim.x) * kLoneGroups;
  int32_t page = static_cast<int32_t>(blockIdx.x + group * gridDim.x);
  for (; page < pages; page += step) {
    const uint32_t keys = __shfl_sync(0xFFFFFFFFU, all_keys + place.slot * (kStageBytes >> 4), 0);
    const uint32_t scales = all_scales + place.slot * kStageBytes;
    const ScoreTile tile{.entry = page * static_cast<int32_t>(kIndexPageEntries) +
                                  static_cast<int32_t>(row)};
    ptx::barrier_wait(all_full + place.slot, place.round);
    float dots[32];
    start_product<1>(dots, keys, heads);
    const uint32_t upper = ptx::load_shared_4(scales);
    const uint32_t lower = ptx::load_shared_4(scales + 32);
    finish_product(dots);
    ptx::barrier_arrive_elected(all_empty + place.slot, upper & lower, lane == 0);
    ptx::pin_registers(dots);  // the sums come behind the arrival
    store_scores(to_bf16 != 0,
                 out,
                 length,
                 {make_float2(__uint_as_float(upper), __uint_as_float(lower)), tile.entry},
                 sum_heads(dots, 0, [&](int c) { return weights[c]; }));
    place.next(kLoneGroups, stages);
  }
}

}  // namespace baleen::kernels
