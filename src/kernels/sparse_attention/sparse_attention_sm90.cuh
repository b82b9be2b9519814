#pragma once
// The Hopper attention kernel for one width of head group, and its launcher. Rows are the 64-row
// side of both tensor products, heads the other side, so that 8 heads cost what 8 heads need.
// Included only by the files that instantiate one width each.
//
//   template void launch_attention_sm90<16>(const SparseAttentionParams&, device::StreamHandle);

#include <cstdint>

#include "device/launch.h"
#include "kernels/ptx/pdl.cuh"
#include "kernels/sparse_attention/attention_fetch.cuh"
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
      ptx::barrier_init(&stats.freed[i], kOutputThreads / 32);
    }
    stats.slice = (kChunks<kHeads> + cluster - 1) / cluster;
    ptx::barrier_init(&stats.received, 1);
    ptx::fence_barrier_init();
  }
  __syncthreads();
}

template <int kHeads>
__global__ void __launch_bounds__(AttentionShape<kHeads>::kLaunchThreads, 1)
    sparse_attention_kernel(const __grid_constant__ SparseAttentionParams params) {
  extern __shared__ __align__(1024) uint8_t memory[];
  const AttentionShared<kHeads> shared(memory);
  if ((ptx::shared_address(memory) & 1023U) != 0) {
    __trap();  // swizzled tiles need it
    return;
  }
  const int32_t head_group = static_cast<int32_t>(blockIdx.y);
  const int32_t query = static_cast<int32_t>(blockIdx.z);
  initialise_block<kHeads>(shared, params.plan.cluster);
  ptx::wait_for_predecessor();
  ptx::release_successor();
  const TileRange range = tile_range(params, query, static_cast<int32_t>(blockIdx.x));
  const int32_t tiles = range.end - range.begin;
  using Shape = AttentionShape<kHeads>;
  constexpr int kScoreGroups = Shape::kScoreGroups;
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  if (group == kScoreGroups + kOutputGroups) {
    ptx::shrink_registers<Shape::kCopyRegisters>();
    RowFetcher<kHeads>(params, shared, query, range).run(tiles);
  } else if (group < kScoreGroups) {
    ptx::grow_registers<Shape::kScoreRegisters>();
    score_tiles<kHeads>(params, shared, tiles, group);
  } else {
    ptx::grow_registers<Shape::kOutputRegisters>();
    prepare_output<kHeads>(params, shared, query, head_group * kHeads);
    accumulate_tiles<kHeads>(shared, tiles, group - kScoreGroups);
    finish_block<kHeads>(params, shared, query, head_group);
  }
}

template <int kHeads>
void launch_attention_sm90(const SparseAttentionParams& params, device::StreamHandle stream) {
  const SparseAttentionPlan& plan = params.plan;
  device::launch(stream,
                 {.grid = dim3(static_cast<unsigned>(plan.cluster * plan.clusters),
                               static_cast<unsigned>(params.heads / kHeads),
                               static_cast<unsigned>(params.num_queries)),
                  .block = dim3(AttentionShape<kHeads>::kLaunchThreads),
                  .cluster = static_cast<unsigned>(plan.cluster),
                  .shared_bytes = AttentionShared<kHeads>::kBytes,
                  .programmatic = params.programmatic},
                 sparse_attention_kernel<kHeads>,
                 params);
}

}  // namespace baleen::kernels
