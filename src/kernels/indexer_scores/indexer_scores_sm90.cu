// Index scores on Hopper. Persistent blocks: two warps fetch key pages (64 keys of 128 bytes by a
// tiled copy in the 128-byte swizzle, their scales by a plain one) into a ring, one fetches
// queries, and consumer warp groups take pages in turn. Entries fill the 64-row side of the
// instruction, the heads of one or two queries its other side; a thread sums the heads of its
// columns in ascending order, then the four lanes of a row are added as a balanced tree.
#include <algorithm>

#include "base/check.h"
#include "device/launch.h"
#include "device/tensor_map.h"
#include "kernels/indexer_scores/indexer_scores.h"
#include "kernels/indexer_scores/page_walk.cuh"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/convert.cuh"
#include "kernels/ptx/opaque.cuh"
#include "kernels/ptx/pdl.cuh"
#include "kernels/ptx/tensor_copy.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace baleen::kernels {
namespace {

constexpr uint32_t kTileBytes = kIndexPageEntries * kScoreDims;  // keys of a page
constexpr uint32_t kScaleBytes = kIndexPageEntries * 4;
constexpr uint32_t kQueryBytes = kScoreHeads * kScoreDims;
constexpr uint32_t kWeightBytes = kScoreHeads * 4;
constexpr int32_t kProducers = 2;    // warps that fetch keys: one alone cannot issue fast enough
constexpr uint32_t kQuerySlots = 2;  // the next request's queries load while this one's are used
constexpr int32_t kMaxRequests = 4096;
constexpr uint32_t kStartBarrier = 1;  // 0 is __syncthreads
constexpr uint32_t kProducersBarrier = 2;

struct ScoresTask {
  IndexerScoresParams params;
  uint32_t stages;
};

struct ScoresArena {
  uint8_t* tiles;      // [stages] key tiles, 1,024-byte aligned
  uint8_t* queries;    // [kQuerySlots][q] query tiles, 1,024-byte aligned
  float* scales;       // [stages][64]
  float* weights;      // [kQuerySlots][q][64]
  ptx::Barrier* full;  // [stages]
  ptx::Barrier* empty;
  ptx::Barrier* query_full;  // [kQuerySlots]
  ptx::Barrier* query_empty;
  int32_t* pages;  // [num_requests]

  __device__ ScoresArena(uint8_t* memory, uint32_t stages, uint32_t queries_per_request) {
    tiles = memory;
    queries = tiles + stages * kTileBytes;
    scales = reinterpret_cast<float*>(queries + kQuerySlots * queries_per_request * kQueryBytes);
    weights = scales + stages * kIndexPageEntries;
    full =
        reinterpret_cast<ptx::Barrier*>(weights + kQuerySlots * queries_per_request * kScoreHeads);
    empty = full + stages;
    query_full = empty + stages;
    query_empty = query_full + kQuerySlots;
    pages = reinterpret_cast<int32_t*>(query_empty + kQuerySlots);
  }
  static std::size_t bytes(uint32_t stages, uint32_t queries_per_request, uint32_t requests) {
    return 1024 + stages * (kTileBytes + kScaleBytes + 16) +
           kQuerySlots * (queries_per_request * (kQueryBytes + kWeightBytes) + 16) + requests * 4;
  }
};

/// A place in a ring of slots and the parity of its round. A user that goes on by `stride` stays on
/// the same slots when the ring's size is a multiple of it; a slot must not change its user,
/// because a wait by parity cannot tell a round from the one before the last.
struct RingPlace {
  uint32_t slot = 0;
  uint32_t round = 0;

  __device__ __forceinline__ void next(uint32_t stride, uint32_t slots) {
    slot += stride;
    if (slot >= slots) {
      slot -= slots;
      round ^= 1;
    }
  }
};

__device__ __forceinline__ int32_t pages_seen(const IndexerScoresParams& params, int32_t request) {
  int32_t longest = 0;
  for (int32_t j = 0; j < params.queries_per_request; ++j) {
    longest = max(longest, params.lengths[request * params.queries_per_request + j]);
  }
  return (longest + static_cast<int32_t>(kIndexPageEntries) - 1) /
         static_cast<int32_t>(kIndexPageEntries);
}

/// Lane l's page number of the walk's next 32 pages.
__device__ __forceinline__ int32_t page_ids(const IndexerScoresParams& params,
                                            const PageWalk& walk) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t* row = params.page_table + walk.request() * params.page_table_stride + walk.page();
  return lane < walk.run() ? row[lane * walk.step()] : 0;
}

/// Keys and scales of every kProducers-th page of the walk from `producer` on. One warp.
__device__ void fetch_keys(const IndexerScoresParams& params,
                           const CUtensorMap* map,
                           PageWalk walk,
                           const ScoresArena& arena,
                           uint32_t stages,
                           int32_t ids,
                           uint32_t producer) {
  const uint32_t lane = threadIdx.x % 32;
  uint8_t* tiles = arena.tiles;
  float* scales = arena.scales;
  ptx::Barrier* all_full = arena.full;
  ptx::Barrier* all_empty = arena.empty;
  const uint8_t* page_scales = params.key_pages + kTileBytes;
  ptx::keep_in_register(tiles);
  ptx::keep_in_register(scales);
  ptx::keep_in_register(all_full);
  ptx::keep_in_register(all_empty);
  ptx::keep_in_register(page_scales);
  ptx::keep_in_register(stages);
  RingPlace place{.slot = producer};
  bool waited = params.stable_entries == nullptr;
  int32_t skip = static_cast<int32_t>(producer);  // pages of this run before the next own one
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
    int32_t i = skip;
    for (; i < count; i += kProducers) {
      const int32_t id = __shfl_sync(0xFFFFFFFFU, ids, i);
      if (!waited && first_page + i * step >= stable_pages) {
        ptx::wait_for_predecessor();
        waited = true;
      }
      if (lane == 0) {
        ptx::Barrier* const full = all_full + place.slot;
        ptx::barrier_wait(all_empty + place.slot, place.round ^ 1);
        ptx::barrier_expect_bytes(full, kTileBytes + kScaleBytes);
        ptx::tensor_load_3d(tiles + place.slot * kTileBytes, map, 0, 0, id, full);
        ptx::bulk_load(scales + place.slot * kIndexPageEntries,
                       page_scales + id * kIndexPageBytes,
                       kScaleBytes,
                       full);
      }
      place.next(kProducers, stages);
    }
    __syncwarp();
    skip = i - count;
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
          ptx::barrier_arrive(all_empty + place.slot);
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

template <bool kSingleQuery, int kGroups>
__global__ __launch_bounds__(
    kGroups * 128 + 32 * (kProducers + 1),
    kSingleQuery&& kGroups == 2
        ? 2
        : 1) void scores_kernel(const __grid_constant__ ScoresTask task,
                                const __grid_constant__ CUtensorMap key_map,
                                const __grid_constant__ CUtensorMap query_map) {
  extern __shared__ uint8_t dynamic[];
  const IndexerScoresParams& params = task.params;
  const uint32_t misplaced = ptx::shared_address(dynamic) % 1024;
  const ScoresArena arena(dynamic + (misplaced == 0 ? 0 : 1024 - misplaced),
                          task.stages,
                          static_cast<uint32_t>(params.queries_per_request));
  const uint32_t warp = threadIdx.x / 32;
  const bool run_ahead = params.stable_entries != nullptr;
  if (!run_ahead) {
    ptx::wait_for_predecessor();
  }
  ptx::release_successor();
  constexpr uint32_t kProducerWarp = kGroups * 4;
  constexpr uint32_t kThreads = kGroups * 128 + 32 * (kProducers + 1);
  const bool single = params.num_requests == 1;
  // Warps: consumers, producers of keys, the producer of queries.
  const uint32_t producer = warp - kProducerWarp;
  if (warp >= kProducerWarp && producer < kProducers) {
    int32_t ids = 0;
    int32_t single_pages = 0;
    if (single) {
      // Page numbers do not depend on the length: both loads are under way at once.
      const int64_t page = blockIdx.x + static_cast<int64_t>(threadIdx.x % 32) * gridDim.x;
      ids = page < params.page_table_stride ? params.page_table[page] : 0;
      single_pages = pages_seen(params, 0);
    }
    if (producer == 0 && threadIdx.x % 32 == 0) {
      ptx::prefetch_tensor_map(&key_map);
      for (uint32_t s = 0; s < task.stages; ++s) {
        ptx::barrier_init(&arena.full[s], 1);
        ptx::barrier_init(&arena.empty[s], 4);
      }
      for (uint32_t s = 0; s < kQuerySlots; ++s) {
        ptx::barrier_init(&arena.query_full[s], 1);
        ptx::barrier_init(&arena.query_empty[s], kGroups * 4);
      }
      ptx::fence_barrier_init();
    }
    __syncwarp();
    if (single) {  // the producers need nothing from the other warps
      ptx::named_barrier_sync(kProducersBarrier, kProducers * 32);
      ptx::named_barrier_arrive(kStartBarrier, kThreads);
      fetch_keys(params, &key_map, PageWalk(single_pages), arena, task.stages, ids, producer);
    } else {
      ptx::named_barrier_sync(kStartBarrier, kThreads);
      const PageWalk walk(arena.pages, params.num_requests);
      ids = walk.more() ? page_ids(params, walk) : 0;
      fetch_keys(params, &key_map, walk, arena, task.stages, ids, producer);
    }
    return;
  }
  int32_t single_pages = 0;
  if (single) {
    single_pages = pages_seen(params, 0);
  } else {
    constexpr int32_t kWorkers = kGroups * 128;
    for (auto r = static_cast<int32_t>(threadIdx.x);
         r < params.num_requests && warp < kProducerWarp;
         r += kWorkers) {
      arena.pages[r] = pages_seen(params, r);
    }
  }
  ptx::named_barrier_sync(kStartBarrier, kThreads);
  if (run_ahead) {
    ptx::wait_for_predecessor();
  }
  const PageWalk walk =
      single ? PageWalk(single_pages) : PageWalk(arena.pages, params.num_requests);
  if (warp >= kProducerWarp) {
    fetch_queries(params, &query_map, walk, arena);
  } else {
    consume<kSingleQuery>(params, walk, arena, task.stages, warp / 4, kGroups);
  }
}

int multiprocessors() {
  static const int count = [] {
    int device = 0;
    int value = 0;
    BALEEN_CUDA_CHECK(cudaGetDevice(&device));
    BALEEN_CUDA_CHECK(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, device));
    return value;
  }();
  return count;
}

template <bool kSingleQuery, int kGroups>
void launch_with(const IndexerScoresParams& params,
                 const IndexerScoresPlan& plan,
                 cudaStream_t stream) {
  const CUtensorMap key_map = device::make_tensor_map(
      {.base = params.key_pages,
       .element = device::MapElement::kByte,
       .extents = {kScoreDims, kIndexPageEntries, static_cast<uint64_t>(params.num_pages)},
       .strides = {kScoreDims, kIndexPageBytes},
       .box = {kScoreDims, kIndexPageEntries, 1},
       .swizzle = device::MapSwizzle::k128});
  const int64_t rows = int64_t{params.num_requests} * params.queries_per_request;
  const CUtensorMap query_map =
      device::make_tensor_map({.base = params.queries,
                               .element = device::MapElement::kByte,
                               .extents = {kScoreDims, static_cast<uint64_t>(rows * kScoreHeads)},
                               .strides = {kScoreDims},
                               .box = {kScoreDims, kScoreHeads},
                               .swizzle = device::MapSwizzle::k128});
  const auto stages = static_cast<uint32_t>(plan.stages);
  device::launch(
      stream,
      {.grid = dim3(static_cast<uint32_t>(plan.blocks_per_multiprocessor * multiprocessors())),
       .block = dim3(kGroups * 128 + 32 * (kProducers + 1)),
       .shared_bytes = ScoresArena::bytes(stages,
                                          static_cast<uint32_t>(params.queries_per_request),
                                          static_cast<uint32_t>(params.num_requests)),
       .programmatic = params.programmatic},
      scores_kernel<kSingleQuery, kGroups>,
      ScoresTask{params, stages},
      key_map,
      query_map);
}

}  // namespace

IndexerScoresPlan plan_indexer_scores(const IndexerScoresParams& params) {
  IndexerScoresPlan plan;
  if (params.queries_per_request >
      1) {  // the products of two queries fill the registers of a block
    plan.blocks_per_multiprocessor = 1;
    plan.warp_groups = 3;
    plan.stages = 12;
  } else if (params.num_requests == 1 && params.stable_entries == nullptr) {
    plan.stages = 4;  // a short stream ends sooner when no block asks for much at once
  }
  return plan;
}

void launch_indexer_scores_sm90(const IndexerScoresParams& params,
                                const IndexerScoresPlan& plan,
                                device::StreamHandle stream) {
  BALEEN_CHECK(params.num_requests >= 0 && params.num_requests <= kMaxRequests &&
                   params.queries_per_request >= 1 &&
                   params.queries_per_request <= kIndexMaxQueries,
               "num_requests={} queries_per_request={}",
               params.num_requests,
               params.queries_per_request);
  BALEEN_CHECK(
      params.score_stride % kIndexPageEntries == 0, "score_stride={}", params.score_stride);
  // A slot of the ring must stay with one warp group and one producer, see RingPlace.
  BALEEN_CHECK(plan.stages >= plan.warp_groups && plan.stages % plan.warp_groups == 0 &&
                   plan.stages % kProducers == 0 && plan.blocks_per_multiprocessor >= 1,
               "warp_groups={} stages={} blocks_per_multiprocessor={}",
               plan.warp_groups,
               plan.stages,
               plan.blocks_per_multiprocessor);
  if (params.num_requests == 0) {
    return;
  }
  const bool single = params.queries_per_request == 1;
  switch (plan.warp_groups) {
    case 2:
      return single ? launch_with<true, 2>(params, plan, stream)
                    : launch_with<false, 2>(params, plan, stream);
    case 3:
      return single ? launch_with<true, 3>(params, plan, stream)
                    : launch_with<false, 3>(params, plan, stream);
    default:
      BALEEN_CHECK(false, "warp_groups={}", plan.warp_groups);
  }
}

void launch_indexer_scores(const IndexerScoresParams& params, device::StreamHandle stream) {
  launch_indexer_scores_sm90(params, plan_indexer_scores(params), stream);
}

}  // namespace baleen::kernels
