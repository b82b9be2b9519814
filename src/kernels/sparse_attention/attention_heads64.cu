// The attention kernel for head groups of 64: one warp group scores, two expand rows and accumulate
// the output, one copies rows.

#include "device/launch.h"
#include "kernels/ptx/pdl.cuh"
#include "kernels/ptx/prefetch.cuh"
#include "kernels/sparse_attention/attention_join.cuh"
#include "kernels/sparse_attention/attention_output.cuh"
#include "kernels/sparse_attention/sparse_attention.h"
#include "kernels/sparse_attention/wide_fetch.cuh"
#include "kernels/sparse_attention/wide_join.cuh"
#include "kernels/sparse_attention/wide_output.cuh"
#include "kernels/sparse_attention/wide_score.cuh"

namespace baleen::kernels {
namespace {

/// One thread.
__device__ __forceinline__ void initialise_wide_block(const AttentionShared<kWideHeads>& shared,
                                                      const SparseAttentionPlan& plan) {
  AttentionStats<kWideHeads>& stats = shared.stats();
  ptx::barrier_init(&stats.q_ready, kOutputThreads);
  for (int i = 0; i < 3; ++i) {
    ptx::barrier_init(&stats.fetched[i], kAttentionTileRows / kWideUnitRows);
    ptx::barrier_init(&stats.expanded[i], kOutputThreads / 32);
    ptx::barrier_init(&stats.full[i], kGroupThreads / 32);
    ptx::barrier_init(&stats.freed[i], kOutputThreads / 32);
  }
  stats.slice = (kChunks<kWideHeads> + plan.cluster - 1) / plan.cluster;
  for (int i = 0; i < kPairLines; ++i) {
    ptx::barrier_init(&stats.lines_came[i], 1);
  }
  ptx::barrier_init(&stats.totals_came, 1);
  ptx::barrier_init(&stats.may_send, kOutputThreads / 32);
  ptx::fence_barrier_init();
  if (plan.cluster == 2) {
    for (int i = 0; i < kPairLines; ++i) {
      ptx::barrier_expect_bytes(&stats.lines_came[i], kPairLineBytes);
    }
    ptx::barrier_expect_bytes(&stats.totals_came, kWideHeads * sizeof(float2));
  }
}

/// Asks the block's 64 KB of q into L2, a part per warp: before the rows, which come in a crowd.
__device__ __forceinline__ void ask_for_query(const SparseAttentionParams& params,
                                              int32_t query,
                                              int32_t head_group) {
  constexpr int kWarps = AttentionShape<kWideHeads>::kLaunchThreads / 32;
  constexpr int kDims = kWideHeads * kKvDims / kWarps;
  if (threadIdx.x % 32 == 0) {
    ptx::prefetch_l2_bulk(
        params.q +
            (static_cast<int64_t>(query) * (params.heads / kWideHeads) + head_group) *
                (kWideHeads * kKvDims) +
            threadIdx.x / 32 * kDims,
        kDims * sizeof(uint16_t));
  }
  __syncwarp();
}

__global__ void __launch_bounds__(AttentionShape<kWideHeads>::kLaunchThreads, 1)
    wide_attention_kernel(const __grid_constant__ SparseAttentionParams params) {
  extern __shared__ __align__(1024) uint8_t memory[];
  const AttentionShared<kWideHeads> shared(memory);
  if ((ptx::shared_address(memory) & 1023U) != 0) {
    __trap();  // swizzled tiles need it
    return;
  }
  const int32_t head_group = static_cast<int32_t>(blockIdx.y);
  const int32_t query = static_cast<int32_t>(blockIdx.z);
  const bool in_cluster = params.plan.cluster > 1;
  if (threadIdx.x == 0) {
    initialise_wide_block(shared, params.plan);
  }
  __syncwarp();
  if (in_cluster) {
    ptx::cluster_arrive_relaxed();  // barriers are ready for the other block
  }
  ptx::wait_for_predecessor();
  ptx::release_successor();
  ask_for_query(params, query, head_group);
  const TileRange range = tile_range(params, query, static_cast<int32_t>(blockIdx.x));
  const int32_t tiles = range.end - range.begin;
  const WideFetcher fetcher(params, shared, query, range);
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  const bool is_output = group == 1 || group == 2;
  const int32_t entry = group > 0 ? fetcher.first_entry(is_output) : -1;
  if (threadIdx.x == 32) {
    shared.stats().peer_spare =
        spare_buffer(tiles_of_part(params, range, static_cast<int32_t>(blockIdx.x) ^ 1));
  }
  __syncthreads();
  using Shape = AttentionShape<kWideHeads>;
  if (group == 3) {
    ptx::shrink_registers<Shape::kCopyRegisters>();
    fetcher.run(tiles, entry);
    if (in_cluster) {
      __syncwarp();
      ptx::cluster_wait();
    }
  } else if (group == 0) {
    ptx::grow_registers<Shape::kScoreRegisters>();
    if (in_cluster) {
      ptx::cluster_wait();
    }
    score_wide_tiles(params, shared, tiles, query, head_group);
  } else {
    ptx::grow_registers<Shape::kOutputRegisters>();
    const WideFetcher::Started started = fetcher.start_first(entry);
    const QueryLoader<kWideHeads> q(params, query, head_group * kWideHeads);
    fetcher.finish_first(started);
    q.store(shared);
    if (in_cluster) {
      ptx::cluster_wait();
    }
    WideAccumulators acc;
    accumulate_wide_tiles(shared, acc, tiles, group - 1, in_cluster);
    finish_wide_block(params, shared, acc, tiles, query, head_group, group - 1);
  }
}

}  // namespace

template <int kHeads>
void launch_attention_sm90(const SparseAttentionParams& params, device::StreamHandle stream);

template <>
void launch_attention_sm90<kWideHeads>(const SparseAttentionParams& params,
                                       device::StreamHandle stream) {
  const SparseAttentionPlan& plan = params.plan;
  device::launch(stream,
                 {.grid = dim3(static_cast<unsigned>(plan.cluster * plan.clusters),
                               static_cast<unsigned>(params.heads / kWideHeads),
                               static_cast<unsigned>(params.num_queries)),
                  .block = dim3(AttentionShape<kWideHeads>::kLaunchThreads),
                  .cluster = static_cast<unsigned>(plan.cluster),
                  .shared_bytes = AttentionShared<kWideHeads>::kBytes,
                  .programmatic = params.programmatic},
                 wide_attention_kernel,
                 params);
}

}  // namespace baleen::kernels
