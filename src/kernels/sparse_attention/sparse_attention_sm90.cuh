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
__device__ __forceinline__ void initialise_block(const AttentionShared<kHeads>& shared) {
  if (threadIdx.x == 0) {
    AttentionStats<kHeads>& stats = shared.stats();
    ptx::barrier_init(&stats.q_ready, kOutputThreads);
    for (int i = 0; i < 2; ++i) {
      ptx::barrier_init(&stats.ranked[i], kHeads);
    }
    for (int i = 0; i < 3; ++i) {
      ptx::barrier_init(&stats.full[i], kGroupThreads);
      ptx::barrier_init(&stats.free[i], kOutputThreads / 32);
    }
    ptx::fence_barrier_init();
  }
  __syncthreads();
}

/// Maximum and sum over tiles of both parities, for the joining that follows.
template <int kHeads>
__device__ __forceinline__ void total_statistics(AttentionStats<kHeads>& stats) {
  const int head = static_cast<int>(threadIdx.x);
  if (head < kHeads) {
    const float maximum = fmaxf(stats.sum_maximum[0][head], stats.sum_maximum[1][head]);
    float sum = 0;
    for (int parity = 0; parity < 2; ++parity) {
      const float(&warps)[4][kHeads] = stats.sums[parity];
      const float rows = __fadd_rn(__fadd_rn(warps[0][head], warps[1][head]),
                                   __fadd_rn(warps[2][head], warps[3][head]));
      sum = __fmaf_rn(rows, ptx::exp2_fast(stats.sum_maximum[parity][head] - maximum), sum);
    }
    stats.total_maximum[head] = maximum;
    stats.total_sum[head] = sum;
  }
}

template <int kHeads>
__device__ __forceinline__ void finish_block(const SparseAttentionParams& params,
                                             const AttentionShared<kHeads>& shared,
                                             int32_t query,
                                             int32_t head_group) {
  block_sync<kHeads>();
  total_statistics<kHeads>(shared.stats());
  if (params.plan.cluster > 1) {
    ptx::cluster_sync();
  } else {
    block_sync<kHeads>();
  }
  join_partials<kHeads>(params, shared, query, head_group);
  if (params.plan.cluster > 1) {
    ptx::cluster_sync();  // peers may still read this block's shared memory
  }
}

template <int kHeads>
__global__ void __launch_bounds__(AttentionShape<kHeads>::kThreads, 1)
    sparse_attention_kernel(const __grid_constant__ SparseAttentionParams params) {
  extern __shared__ uint8_t memory[];
  const AttentionShared<kHeads> shared(memory);
  const int32_t head_group = static_cast<int32_t>(blockIdx.y);
  const int32_t query = static_cast<int32_t>(blockIdx.z);
  initialise_block<kHeads>(shared);
  ptx::wait_for_predecessor();
  ptx::release_successor();
  const TileRange range = tile_range(params, query, static_cast<int32_t>(blockIdx.x));
  constexpr int kScoreGroups = AttentionShape<kHeads>::kScoreGroups;
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  if (group < kScoreGroups) {
    score_tiles<kHeads>(params, shared, query, range, group);
  } else {
    load_queries<kHeads>(params, shared, query, head_group * kHeads);
    if (params.positions != nullptr && threadIdx.x < kScoreGroups * kGroupThreads + kRopePairs) {
      const int pair = static_cast<int>(threadIdx.x) % 32;
      shared.stats().turns[pair] = rotation(params.positions[query], params.frequencies[pair]);
    }
    accumulate_tiles<kHeads>(shared, range.end - range.begin, group - kScoreGroups);
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
