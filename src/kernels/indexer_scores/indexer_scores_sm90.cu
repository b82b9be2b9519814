// Index scores on Hopper. Persistent blocks: one warp fetches key pages (64 keys of 128 bytes and
// their scales, 66 rows of 128 bytes in the 128-byte swizzle, by one copy) into a ring, one fetches
// queries, and consumer warp groups take pages in turn. One query of one request has a kernel of
// its own (scores_lone.cuh). Entries fill the 64-row side of the
// instruction, the heads of one or two queries its other side; a thread sums the heads of its
// columns in ascending order, then the four lanes of a row are added as a balanced tree.
#include "base/check.h"
#include "device/launch.h"
#include "device/tensor_map.h"
#include "kernels/indexer_scores/indexer_scores.h"
#include "kernels/indexer_scores/page_walk.cuh"
#include "kernels/indexer_scores/scores_arena.cuh"
#include "kernels/indexer_scores/scores_consume.cuh"
#include "kernels/indexer_scores/scores_fetch.cuh"
#include "kernels/indexer_scores/scores_lone.cuh"
#include "kernels/ptx/pdl.cuh"
#include "kernels/ptx/tensor_copy.cuh"

namespace baleen::kernels {
namespace {

constexpr int32_t kMaxRequests = 4096;
constexpr uint32_t kStartBarrier = 1;  // 0 is __syncthreads

struct ScoresTask {
  IndexerScoresParams params;
  uint32_t stages;
};

template <bool kSingleQuery, int kGroups>
__global__ __launch_bounds__(kGroups * 128 + 64, kSingleQuery ? 2 : 1) void scores_kernel(
    const __grid_constant__ ScoresTask task,
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
  constexpr uint32_t kThreads = kGroups * 128 + 64;
  const bool single = params.num_requests == 1;
  // Warps: consumers, the producer of pages, the producer of queries.
  const bool fetches_keys = warp == kProducerWarp;
  int32_t single_pages = 0;
  if (fetches_keys) {
    int32_t ids = 0;
    if (single) {
      // Page numbers do not depend on the length: both loads are under way at once.
      const int64_t page = blockIdx.x + static_cast<int64_t>(threadIdx.x % 32) * gridDim.x;
      ids = page < params.page_table_stride ? params.page_table[page] : 0;
      single_pages = pages_seen(params, 0);
    }
    if (threadIdx.x % 32 == 0) {
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
    if (single) {  // the producer needs nothing from the other warps
      ptx::named_barrier_arrive(kStartBarrier, kThreads);
      fetch_keys(params, &key_map, PageWalk(single_pages), arena, task.stages, ids);
      return;
    }
  } else if (single) {
    single_pages = pages_seen(params, 0);
  } else {
    constexpr int32_t kWorkers = kGroups * 128;
    for (auto r = static_cast<int32_t>(threadIdx.x);
         r < params.num_requests && warp < kProducerWarp;
         r += kWorkers) {
      arena.page_counts[r] = pages_seen(params, r);
    }
  }
  ptx::named_barrier_sync(kStartBarrier, kThreads);
  if (fetches_keys) {
    const PageWalk walk(arena.page_counts, params.num_requests);
    const int32_t ids = walk.more() ? page_ids(params, walk) : 0;
    fetch_keys(params, &key_map, walk, arena, task.stages, ids);
    return;
  }
  if (run_ahead) {
    ptx::wait_for_predecessor();
  }
  const PageWalk walk =
      single ? PageWalk(single_pages) : PageWalk(arena.page_counts, params.num_requests);
  if (warp >= kProducerWarp) {
    fetch_queries(params, &query_map, walk, arena);
  } else {
    consume<kSingleQuery, kGroups == 2>(params, walk, arena, task.stages, warp / 4, kGroups);
  }
}

__global__ __launch_bounds__(kLoneThreads, 2) void lone_scores_kernel(
    const __grid_constant__ ScoresTask task,
    const __grid_constant__ CUtensorMap key_map,
    const __grid_constant__ CUtensorMap query_map) {
  extern __shared__ uint8_t dynamic[];
  const uint32_t misplaced = ptx::shared_address(dynamic) % 1024;
  const LoneArena arena(dynamic + (misplaced == 0 ? 0 : 1024 - misplaced), task.stages);
  if (task.params.stable_entries == nullptr) {
    ptx::wait_for_predecessor();
  }
  ptx::release_successor();
  if (threadIdx.x / 128 == kLoneGroups) {
    fetch_lone(task.params, &key_map, arena, task.stages);
  } else {
    consume_lone(task.params, &query_map, arena, task.stages, threadIdx.x / 128);
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
       .extents = {kScoreDims, kPageRows, static_cast<uint64_t>(params.num_pages)},
       .strides = {kScoreDims, kIndexPageBytes},
       .box = {kScoreDims, kPageRows, 1},
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
  if (kSingleQuery && kGroups == kLoneGroups && params.num_requests == 1 && plan.lone) {
    device::launch(
        stream,
        {.grid = dim3(static_cast<uint32_t>(plan.blocks_per_multiprocessor * multiprocessors())),
         .block = dim3(kLoneThreads),
         .shared_bytes = LoneArena::bytes(stages),
         .programmatic = params.programmatic},
        lone_scores_kernel,
        ScoresTask{params, stages},
        key_map,
        query_map);
    return;
  }
  device::launch(
      stream,
      {.grid = dim3(static_cast<uint32_t>(plan.blocks_per_multiprocessor * multiprocessors())),
       .block = dim3(kGroups * 128 + 64),
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
  } else if (params.num_requests == 1) {
    plan.lone = true;
    // A short stream ends sooner when no block asks for much at once; run ahead, what is asked for
    // before the predecessor's end counts.
    plan.stages = params.stable_entries == nullptr ? 4 : 8;
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
  // A slot of the ring must stay with one warp group, see RingPlace.
  BALEEN_CHECK(plan.stages >= plan.warp_groups && plan.stages % plan.warp_groups == 0 &&
                   plan.blocks_per_multiprocessor >= 1,
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
