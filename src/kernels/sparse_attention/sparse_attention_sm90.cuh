#pragma once
// The Hopper attention kernel for one width of head group, and its launcher. Rows are the 64-row
// side of both tensor products, heads the other side, so that 8 heads cost what 8 heads need.
// Included only by the files that instantiate one width each.
//
//   template void launch_attention_sm90<16>(const SparseAttentionParams&, device::StreamHandle);

#include <cstdint>

#include "device/launch.h"
#include "kernels/ptx/pdl.cuh"
#include "kernels/sparse_attention/attention_join.cuh"
#include "kernels/sparse_attention/attention_output.cuh"
#include "kernels/sparse_attention/attention_score.cuh"
#include "kernels/sparse_attention/sparse_attention.h"

namespace baleen::kernels {

template <int kHeads>
__device__ __forceinline__ void initialise_block(const AttentionShared<kHeads>& shared,
                                                 int32_t cluster) {
  if (threadIdx.x == 0) {
    AttentionStats<kHeads>& stats = shared.stats();
    ptx::barrier_init(&stats.q_ready, kOutputThreads);
    for (int i = 0; i < 2; ++i) {
      ptx::barrier_init(&stats.ranked[i], kHeads);
    }
    for (int i = 0; i < 3; ++i) {
      ptx::barrier_init(&stats.fetched[i], 2 * kAttentionTileRows);
      ptx::barrier_init(&stats.full[i], kGroupThreads);
    }
    stats.slice = (kChunks<kHeads> + cluster - 1) / cluster;
    ptx::barrier_init(&stats.received, 1);
    ptx::fence_barrier_init();
  }
  __syncthreads();
}

template <int kHeads>
__device__ __forceinline__ void finish_block(const SparseAttentionParams& params,
                                             const AttentionShared<kHeads>& shared,
                                             int32_t query,
                                             int32_t head_group) {
  if (params.plan.cluster > 1) {
    ptx::fence_async_shared();  // the copy engine reads the partial output
    ptx::cluster_sync();        // peers are done with the memory that receives
    exchange_partials<kHeads>(shared, params.plan.cluster);
    ptx::cluster_arrive();
  } else {
    block_sync<kHeads>();
  }
  join_partials<kHeads>(params, shared, query, head_group);
  if (params.plan.cluster > 1) {
    ptx::cluster_wait();  // copies out of this block's memory have ended
  }
}

template <int kHeads>
__global__ void __launch_bounds__(AttentionShape<kHeads>::kThreads, 1)
    sparse_attention_kernel(const __grid_constant__ SparseAttentionParams params) {
  extern __shared__ uint8_t memory[];
  const AttentionShared<kHeads> shared(memory);
  const int32_t head_group = static_cast<int32_t>(blockIdx.y);
  const int32_t query = static_cast<int32_t>(blockIdx.z);
  initialise_block<kHeads>(shared, params.plan.cluster);
  ptx::wait_for_predecessor();
  ptx::release_successor();
  const TileRange range = tile_range(params, query, static_cast<int32_t>(blockIdx.x));
  const int32_t tiles = range.end - range.begin;
  constexpr int kScoreGroups = AttentionShape<kHeads>::kScoreGroups;
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  if (group < kScoreGroups) {
    score_tiles<kHeads>(params, shared, tiles, group);
  } else {
    RowFetcher<kHeads> fetcher(params, shared, query, range);
    const QueryLoader<kHeads> q(params, query, head_group * kHeads);
    fetcher.fetch_first();
    q.store(shared);
    fetcher.ask_ahead();
    load_sinks<kHeads>(params, shared, head_group * kHeads);
    if (params.positions != nullptr && threadIdx.x < kScoreGroups * kGroupThreads + kRopePairs) {
      const int pair = static_cast<int>(threadIdx.x) % 32;
      shared.stats().turns[pair] = rotation(params.positions[query], params.frequencies[pair]);
    }
    accumulate_tiles<kHeads>(shared, fetcher, tiles, group - kScoreGroups);
  }
  finish_block<kHeads>(params, shared, query, head_group);
}

template <int kHeads>
void launch_attention_sm90(const SparseAttentionParams& params, device::StreamHandle stream) {
  const SparseAttentionPlan& plan = params.plan;
  device::launch(stream,
                 {.grid = dim3(static_cast<unsigned>(plan.cluster * plan.clusters),
                               static_cast<unsigned>(params.heads / kHeads),
                               static_cast<unsigned>(params.num_queries)),
                  .block = dim3(AttentionShape<kHeads>::kThreads),
                  .cluster = static_cast<unsigned>(plan.cluster),
                  .shared_bytes = AttentionShared<kHeads>::kBytes + 1024,
                  .programmatic = params.programmatic},
                 sparse_attention_kernel<kHeads>,
                 params);
}

}  // namespace baleen::kernels
