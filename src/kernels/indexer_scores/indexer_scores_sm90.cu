// Index scores on Hopper. Persistent blocks: one warp fetches key pages (64 keys of 128 bytes by a
// tiled copy in the 128-byte swizzle, their scales by a plain one) into a ring, one fetches
// queries, and consumer warp groups take pages in turn. Entries fill the 64-row side of the
// instruction, heads of one or two queries its other side; a thread sums the heads of its columns
// in ascending order, then the four lanes of a row are added as a balanced tree.
#include <algorithm>

#include "base/check.h"
#include "device/launch.h"
#include "device/tensor_map.h"
#include "kernels/indexer_scores/indexer_scores.h"
#include "kernels/indexer_scores/page_walk.cuh"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/convert.cuh"
#include "kernels/ptx/pdl.cuh"
#include "kernels/ptx/tensor_copy.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace baleen::kernels {
namespace {

constexpr uint32_t kTileBytes = kIndexPageEntries * kIndexDims;  // keys of a page
constexpr uint32_t kScaleBytes = kIndexPageEntries * 4;
constexpr uint32_t kQueryBytes = kIndexHeads * kIndexDims;
constexpr uint32_t kWeightBytes = kIndexHeads * 4;
constexpr uint32_t kQuerySlots = 2;  // the next request's queries load while this one's are used
constexpr int32_t kMaxRequests = 4096;

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
        reinterpret_cast<ptx::Barrier*>(weights + kQuerySlots * queries_per_request * kIndexHeads);
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

/// The position in a ring of `slots` and the parity of its round.
struct RingPlace {
  uint32_t slot = 0;
  uint32_t round = 0;

  __device__ __forceinline__ void next(uint32_t slots) {
    if (++slot == slots) {
      slot = 0;
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

/// Keys and scales of every page of the walk, in order. One warp.
__device__ void fetch_keys(const IndexerScoresParams& params,
                           const CUtensorMap* map,
                           PageWalk walk,
                           const ScoresArena& arena,
                           uint32_t stages,
                           int32_t first_ids) {
  const uint32_t lane = threadIdx.x % 32;
  RingPlace place;
  bool waited = params.stable_entries == nullptr;
  int32_t ids = first_ids;
  while (walk.more()) {
    const int32_t count = min(32, walk.run());
    const int32_t request = walk.request();
    const int32_t first_page = walk.page();
    walk.advance(count);
    const int32_t next_ids = walk.more() ? page_ids(params, walk) : 0;
    // Pages that the running step may still write end the run-ahead.
    const int32_t stable_pages =
        waited ? 0x7FFFFFFF
               : params.stable_entries[request] / static_cast<int32_t>(kIndexPageEntries);
    for (int32_t i = 0; i < count; ++i) {
      const int32_t id = __shfl_sync(0xFFFFFFFFU, ids, i);
      if (!waited && first_page + i * walk.step() >= stable_pages) {
        ptx::wait_for_predecessor();
        waited = true;
      }
      if (lane == 0) {
        ptx::barrier_wait(&arena.empty[place.slot], place.round ^ 1);
        ptx::Barrier* full = &arena.full[place.slot];
        ptx::barrier_expect_bytes(full, kTileBytes + kScaleBytes);
        ptx::tensor_load_3d(arena.tiles + place.slot * kTileBytes, map, 0, 0, id, full);
        ptx::bulk_load(arena.scales + place.slot * kIndexPageEntries,
                       params.key_pages + id * kIndexPageBytes + kTileBytes,
                       kScaleBytes,
                       full);
      }
      place.next(stages);
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
                            (row + static_cast<int32_t>(j)) * static_cast<int32_t>(kIndexHeads),
                            full);
      }
      ptx::bulk_load(arena.weights + place.slot * q * kIndexHeads,
                     params.head_weights + int64_t{row} * kIndexHeads,
                     q * kWeightBytes,
                     full);
    }
    __syncwarp();
    walk.advance(walk.run());
    place.next(kQuerySlots);
  }
}

/// Products of one key tile with `kPassQueries` query tiles.
template <int kPassQueries>
__device__ __forceinline__ void multiply(float (&dots)[32 * kPassQueries],
                                         const uint8_t* tile,
                                         const uint8_t* queries) {
  const uint64_t keys = ptx::k_major_descriptor(tile);
  const uint64_t heads = ptx::k_major_descriptor(queries);
  ptx::pin_registers(dots);
  ptx::wgmma_fence();
#pragma unroll
  for (uint32_t step = 0; step < 4; ++step) {
    ptx::Wgmma<ptx::E4m3, 64 * kPassQueries>::shared(dots,
                                                     ptx::advance_descriptor(keys, step * 32),
                                                     ptx::advance_descriptor(heads, step * 32),
                                                     step > 0 ? 1 : 0);
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::pin_registers(dots);
}

/// The head sums of this thread's two rows (r and r + 8) for query j of the pass, the same in the
/// four lanes of a row.
template <int kCount>
__device__ __forceinline__ float2 sum_heads(const float (&dots)[kCount],
                                            int j,
                                            const float* weights) {
  const float2* pairs = reinterpret_cast<const float2*>(weights) + threadIdx.x % 4;
  float2 upper = make_float2(0, 0);
  float2 lower = make_float2(0, 0);
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    const float2 a = pairs[c * 4];
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

struct ScoreTile {
  int32_t first_entry;
  uint32_t row;  // of the tile: this thread's upper row
  float2 scale;  // of both rows
};

__device__ __forceinline__ void store_scores(const IndexerScoresParams& params,
                                             int32_t query_row,
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
  const int32_t entry = tile.first_entry + static_cast<int32_t>(tile.row);
  float* out = params.scores + query_row * params.score_stride + entry;
  const float none = __int_as_float(static_cast<int>(0xFF800000U));
  out[0] = entry < length ? upper : none;
  out[8] = entry + 8 < length ? lower : none;
}

/// Every `groups`-th page of the walk, for all queries. One warp group.
template <bool kPairs>
__device__ void consume(const IndexerScoresParams& params,
                        PageWalk walk,
                        const ScoresArena& arena,
                        uint32_t stages,
                        uint32_t group,
                        uint32_t groups) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t row = threadIdx.x % 128 / 32 * 16 + lane / 4;
  const auto q = static_cast<uint32_t>(params.queries_per_request);
  RingPlace place;
  RingPlace query_place;
  int32_t request = -1;
  int32_t only_length = 0;
  uint32_t turn = 0;
  for (; walk.more();
       walk.advance(1), place.next(stages), turn = turn + 1 == groups ? 0 : turn + 1) {
    if (walk.request() != request) {
      if (request >= 0) {
        if (lane == 0) {
          ptx::barrier_arrive(&arena.query_empty[query_place.slot]);
        }
        query_place.next(kQuerySlots);
      }
      request = walk.request();
      only_length = params.lengths[request * params.queries_per_request];
      ptx::barrier_wait(&arena.query_full[query_place.slot], query_place.round);
    }
    if (turn != group) {
      continue;
    }
    const int32_t query_row = request * params.queries_per_request;
    const uint8_t* tile = arena.tiles + place.slot * kTileBytes;
    const uint8_t* queries = arena.queries + query_place.slot * q * kQueryBytes;
    const float* weights = arena.weights + query_place.slot * q * kIndexHeads;
    ptx::barrier_wait(&arena.full[place.slot], place.round);
    const float* scales = arena.scales + place.slot * kIndexPageEntries + row;
    const ScoreTile where{walk.page() * static_cast<int32_t>(kIndexPageEntries),
                          row,
                          make_float2(scales[0], scales[8])};
    const auto release = [&] {
      __syncwarp();
      if (lane == 0) {
        ptx::barrier_arrive(&arena.empty[place.slot]);
      }
    };
    if constexpr (kPairs) {
      uint32_t j = 0;
      for (; j + 2 <= q; j += 2) {
        float dots[64];
        const int32_t first_length = params.lengths[query_row + static_cast<int32_t>(j)];
        const int32_t second_length = params.lengths[query_row + static_cast<int32_t>(j) + 1];
        multiply<2>(dots, tile, queries + j * kQueryBytes);
        if (j + 2 == q) {
          release();
        }
        const float2 first = sum_heads(dots, 0, weights + j * kIndexHeads);
        store_scores(params, query_row + static_cast<int32_t>(j), first_length, where, first);
        const float2 second = sum_heads(dots, 1, weights + (j + 1) * kIndexHeads);
        store_scores(params, query_row + static_cast<int32_t>(j) + 1, second_length, where, second);
      }
      if (j < q) {
        float dots[32];
        const int32_t length = params.lengths[query_row + static_cast<int32_t>(j)];
        multiply<1>(dots, tile, queries + j * kQueryBytes);
        release();
        store_scores(params,
                     query_row + static_cast<int32_t>(j),
                     length,
                     where,
                     sum_heads(dots, 0, weights + j * kIndexHeads));
      }
    } else {
      float dots[32];
      multiply<1>(dots, tile, queries);
      release();
      store_scores(params, query_row, only_length, where, sum_heads(dots, 0, weights));
    }
  }
}

template <bool kPairs, int kGroups>
__global__ __launch_bounds__(kGroups * 128 +
                             64) void scores_kernel(const __grid_constant__ ScoresTask task,
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
  int32_t early_ids = 0;
  if (params.num_requests == 1 && warp == kGroups * 4) {
    // The numbers of the first pages do not depend on the length: both loads are under way at once.
    const int64_t page = blockIdx.x + static_cast<int64_t>(threadIdx.x % 32) * gridDim.x;
    early_ids = page < params.page_table_stride ? params.page_table[page] : 0;
  }
  for (auto r = static_cast<int32_t>(threadIdx.x); r < params.num_requests;
       r += kGroups * 128 + 64) {
    arena.pages[r] = pages_seen(params, r);
  }
  if (threadIdx.x == 0) {
    for (uint32_t s = 0; s < task.stages; ++s) {
      ptx::barrier_init(&arena.full[s], 1);
      ptx::barrier_init(&arena.empty[s], 4);
    }
    for (uint32_t s = 0; s < kQuerySlots; ++s) {
      ptx::barrier_init(&arena.query_full[s], 1);
      ptx::barrier_init(&arena.query_empty[s], kGroups * 4);
    }
    ptx::fence_barrier_init();
    ptx::prefetch_tensor_map(&key_map);
    ptx::prefetch_tensor_map(&query_map);
  }
  __syncthreads();
  const PageWalk walk(arena.pages, params.num_requests);
  if (warp == kGroups * 4) {
    const int32_t ids =
        params.num_requests == 1 || !walk.more() ? early_ids : page_ids(params, walk);
    fetch_keys(params, &key_map, walk, arena, task.stages, ids);
  } else {
    if (run_ahead) {
      ptx::wait_for_predecessor();
    }
    if (warp > kGroups * 4) {
      fetch_queries(params, &query_map, walk, arena);
    } else {
      consume<kPairs>(params, walk, arena, task.stages, warp / 4, kGroups);
    }
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

template <bool kPairs, int kGroups>
void launch_with(const IndexerScoresParams& params,
                 const IndexerScoresPlan& plan,
                 cudaStream_t stream) {
  const CUtensorMap key_map = device::make_tensor_map(
      {.base = params.key_pages,
       .element = device::MapElement::kByte,
       .extents = {kIndexDims, kIndexPageEntries, static_cast<uint64_t>(params.num_pages)},
       .strides = {kIndexDims, kIndexPageBytes},
       .box = {kIndexDims, kIndexPageEntries, 1},
       .swizzle = device::MapSwizzle::k128});
  const int64_t rows = int64_t{params.num_requests} * params.queries_per_request;
  const CUtensorMap query_map =
      device::make_tensor_map({.base = params.queries,
                               .element = device::MapElement::kByte,
                               .extents = {kIndexDims, static_cast<uint64_t>(rows * kIndexHeads)},
                               .strides = {kIndexDims},
                               .box = {kIndexDims, kIndexHeads},
                               .swizzle = device::MapSwizzle::k128});
  const auto stages = static_cast<uint32_t>(plan.stages);
  device::launch(
      stream,
      {.grid = dim3(static_cast<uint32_t>(plan.blocks > 0 ? plan.blocks : multiprocessors())),
       .block = dim3(kGroups * 128 + 64),
       .shared_bytes = ScoresArena::bytes(stages,
                                          static_cast<uint32_t>(params.queries_per_request),
                                          static_cast<uint32_t>(params.num_requests)),
       .programmatic = params.programmatic},
      scores_kernel<kPairs, kGroups>,
      ScoresTask{params, stages},
      key_map,
      query_map);
}

}  // namespace

IndexerScoresPlan plan_indexer_scores(const IndexerScoresParams& params) {
  IndexerScoresPlan plan;
  if (params.queries_per_request > 1) {
    plan.warp_groups = 4;  // bound by tensor work: more groups hide the head sums
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
  BALEEN_CHECK((plan.warp_groups == 2 || plan.warp_groups == 4) && plan.stages >= 2,
               "warp_groups={} stages={}",
               plan.warp_groups,
               plan.stages);
  if (params.num_requests == 0) {
    return;
  }
  const bool pairs = params.queries_per_request > 1;
  if (plan.warp_groups == 2) {
    pairs ? launch_with<true, 2>(params, plan, stream)
          : launch_with<false, 2>(params, plan, stream);
  } else {
    pairs ? launch_with<true, 4>(params, plan, stream)
          : launch_with<false, 4>(params, plan, stream);
  }
}

void launch_indexer_scores(const IndexerScoresParams& params, device::StreamHandle stream) {
  launch_indexer_scores_sm90(params, plan_indexer_scores(params), stream);
}

}  // namespace baleen::kernels
