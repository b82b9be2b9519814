#pragma once
// Where the clusters of a query and head group meet: counters and partial results in the workspace.
// Every block of a rank leaves its partial slice there and waits for the others of its rank. A
// block does not wait where the grid may not fit the card at once, nor for long: it goes, and the
// block that comes last does its share too, so no block ever needs another one to be running.
//
//   if (thread == 0) { joins = meet_clusters(counter, clusters, part, waits, left); }
//   ... join the own share and those of `left` ...
//   if (thread == 0) { leave_clusters(counter, clusters); }

#include <cstdint>

#include "kernels/ptx/global_counter.cuh"
#include "kernels/ptx/global_word.cuh"
#include "kernels/sparse_attention/attention_tile.cuh"

namespace baleen::kernels {

/// Blocks of one rank that meet in the workspace. Zero before and after every launch.
struct JoinCounter {
  uint64_t arrived;  // low 8 bits: blocks that have left their slice; bit 8 + c: cluster c has gone
  int32_t done;      // blocks that need `arrived` no more
  int32_t unused;
};
inline constexpr int kJoinCounterWords = sizeof(JoinCounter) / 4;
inline constexpr uint64_t kArrivedMask = 0xFF;
inline constexpr int64_t kWaitClocks = 100'000;  // for other blocks, about 50 us
static_assert(kMaxClusters <= 56);

/// Where joined partials of clusters lie: counters first, then maxima and sums, then outputs.
struct JoinWorkspace {
  JoinCounter* counters;  // [query][head group][rank]
  float* statistics;      // [query][head group][cluster][rank][2][heads]
  float* outputs;         // [query][head group][cluster][heads][512]
};

__host__ __device__ inline int64_t join_counters(const SparseAttentionPlan& plan, int32_t groups) {
  return static_cast<int64_t>(plan.max_queries) * groups * plan.cluster * kJoinCounterWords;
}
__host__ __device__ inline int64_t join_statistics(const SparseAttentionPlan& plan, int32_t heads) {
  return static_cast<int64_t>(plan.max_queries) * plan.clusters * plan.cluster * 2 * heads;
}
__host__ __device__ inline int64_t join_outputs(const SparseAttentionPlan& plan, int32_t heads) {
  return static_cast<int64_t>(plan.max_queries) * plan.clusters * heads * kKvDims;
}

__device__ __forceinline__ JoinWorkspace join_workspace(const SparseAttentionParams& params) {
  const int32_t groups = params.heads / params.plan.heads_per_block;
  auto* words = static_cast<float*>(params.workspace);
  float* statistics = words + join_counters(params.plan, groups);
  return {static_cast<JoinCounter*>(params.workspace),
          statistics,
          statistics + join_statistics(params.plan, params.heads)};
}

/// Blocks that surely run at the same time: one per multiprocessor, and clusters of three and more
/// leave some of those idle.
__device__ __forceinline__ bool grid_fits_at_once(int32_t cluster) {
  uint32_t multiprocessors;
  asm("mov.u32 %0, %%nsmid;" : "=r"(multiprocessors));
  const uint32_t most = cluster <= 2 ? multiprocessors / 2 * 2 : multiprocessors * 3 / 4;
  return gridDim.x * gridDim.y * gridDim.z <= most;
}

/// Thread 0: tells that this block's slice lies in the workspace; true once those of all clusters
/// do and this block is to join. `left` gets the clusters whose shares are to be joined beside its
/// own.
__device__ __forceinline__ bool meet_clusters(
    JoinCounter* counter, int32_t clusters, int32_t part, bool waits, uint64_t& left) {
  const auto all = static_cast<uint64_t>(clusters);
  const uint64_t before = ptx::add_acquire_release_64(&counter->arrived, 1);
  left = 0;
  if ((before & kArrivedMask) + 1 == all) {
    left = before >> 8;
    return true;
  }
  if (waits) {
    const int64_t begin = clock64();
    do {
      if ((ptx::load_acquire_64(&counter->arrived) & kArrivedMask) == all) {
        return true;
      }
    } while (clock64() - begin < kWaitClocks);
  }
  const uint64_t leaving = ptx::or_acquire_release_64(&counter->arrived, uint64_t{1} << (8 + part));
  return (leaving & kArrivedMask) == all;  // all came just now: nobody counts this block as gone
}

/// Thread 0, when this block reads `arrived` no more: the last to say so clears the counter.
__device__ __forceinline__ void leave_clusters(JoinCounter* counter, int32_t clusters) {
  if (ptx::add_acquire_release(&counter->done, 1) == clusters - 1) {
    counter->arrived = 0;
    counter->done = 0;
  }
}

}  // namespace baleen::kernels
