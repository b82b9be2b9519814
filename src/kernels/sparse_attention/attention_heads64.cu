// The attention kernel for head groups of 64: one warp group scores, two expand rows and accumulate
// the output, one copies rows.

#include "device/launch.h"
#include "kernels/ptx/pdl.cuh"
#include "kernels/sparse_attention/attention_fetch.cuh"
#include "kernels/sparse_attention/attention_join.cuh"
#include "kernels/sparse_attention/attention_output.cuh"
#include "kernels/sparse_attention/sparse_attention.h"
#include "kernels/sparse_attention/wide_output.cuh"
#include "kernels/sparse_attention/wide_score.cuh"

namespace baleen::kernels {
namespace {

__device__ __forceinline__ void initialise_wide_block(const AttentionShared<kWideHeads>& shared,
                                                      int32_t cluster) {
  if (threadIdx.x == 0) {
    AttentionStats<kWideHeads>& stats = shared.stats();
    ptx::barrier_init(&stats.q_ready, kOutputThreads);
    for (int i = 0; i < 3; ++i) {
      ptx::barrier_init(&stats.fetched[i], 2 * kAttentionTileRows);
      ptx::barrier_init(&stats.expanded[i], kOutputThreads / 32);
      ptx::barrier_init(&stats.full[i], kGroupThreads);
      ptx::barrier_init(&stats.freed[i], kOutputThreads / 32);
    }
    stats.slice = (kChunks<kWideHeads> + cluster - 1) / cluster;
    ptx::barrier_init(&stats.received, 1);
    ptx::fence_barrier_init();
  }
  __syncthreads();
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
  initialise_wide_block(shared, params.plan.cluster);
  ptx::wait_for_predecessor();
  ptx::release_successor();
  const TileRange range = tile_range(params, query, static_cast<int32_t>(blockIdx.x));
  const int32_t tiles = range.end - range.begin;
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  using Shape = AttentionShape<kWideHeads>;
  if (group == 3) {
    ptx::shrink_registers<Shape::kCopyRegisters>();
    RowFetcher<kWideHeads>(params, shared, query, range).run(tiles);
  } else if (group == 0) {
    ptx::grow_registers<Shape::kScoreRegisters>();
    score_wide_tiles(params, shared, tiles);
  } else {
    ptx::grow_registers<Shape::kOutputRegisters>();
    prepare_output<kWideHeads>(params, shared, query, head_group * kWideHeads);
    accumulate_wide_tiles(shared, tiles, group - 1);
    finish_block<kWideHeads>(params, shared, query, head_group);
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
