#pragma once
// Last step of the attention kernel: partial outputs of the blocks of a cluster are exchanged
// through shared memory, those of several clusters through the workspace by the block that comes
// last, and the result is divided, turned back and stored. All threads, each eight dims of one
// head.
//
//   join_partials<kHeads>(params, shared, query, head_begin);
//
// Always in the order of ranks, then of clusters: the same launch gives the same bits.

#include <cstdint>

#include "kernels/cache_entry/row_math.cuh"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/convert.cuh"
#include "kernels/ptx/exp2.cuh"
#include "kernels/sparse_attention/attention_tile.cuh"

namespace baleen::kernels {

inline constexpr int kJoinDims = 8;
inline constexpr float kLnOf2 = 0.6931471805599453F;

/// Where joined partials of clusters lie: counters first, then maxima and sums, then outputs.
struct JoinWorkspace {
  int32_t* counters;  // [query][head group][rank]
  float* statistics;  // [query][head group][cluster][rank][2][heads]
  float* outputs;     // [query][head group][cluster][heads][512]
};

__host__ __device__ inline int64_t join_counters(const SparseAttentionPlan& plan, int32_t groups) {
  return (static_cast<int64_t>(plan.max_queries) * groups * plan.cluster + 3) / 4 * 4;
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
  return {static_cast<int32_t*>(params.workspace),
          statistics,
          statistics + join_statistics(params.plan, params.heads)};
}

template <int kHeads>
inline constexpr int kChunks = kHeads * kKvDims / kJoinDims;  // of a head group
inline constexpr int kHeadChunks = kKvDims / kJoinDims;

/// First chunk of the slice that block `rank` of the cluster joins; `slice` chunks each but the
/// last.
template <int kHeads>
__device__ __forceinline__ int slice_begin(int rank, int slice) {
  return min(rank * slice, kChunks<kHeads>);
}

/// Sends every peer its slice of this block's partial output, with maxima and sums, and waits for
/// what the peers send. One bulk copy per peer and head.
template <int kHeads>
__device__ __forceinline__ void exchange_partials(const AttentionShared<kHeads>& shared,
                                                  int32_t cluster) {
  AttentionStats<kHeads>& stats = shared.stats();
  const int rank = static_cast<int>(ptx::cluster_rank());
  const int slice = stats.slice;
  const int begin = slice_begin<kHeads>(rank, slice);
  const int end = slice_begin<kHeads>(rank + 1, slice);
  if (threadIdx.x == 0) {
    ptx::barrier_expect_bytes(
        &stats.received,
        static_cast<uint32_t>((cluster - 1) * ((end - begin) * kJoinDims * 4 + kHeads * 8)));
  }
  for (int item = static_cast<int>(threadIdx.x); item < cluster * kHeads;
       item += AttentionShape<kHeads>::kThreads) {
    const int peer = item / kHeads;
    const int head = item % kHeads;
    if (peer == rank) {
      continue;
    }
    const int peer_begin = slice_begin<kHeads>(peer, slice);
    const int peer_end = slice_begin<kHeads>(peer + 1, slice);
    const int first = max(peer_begin, head * kHeadChunks);
    const int last = min(peer_end, (head + 1) * kHeadChunks);
    const float2 totals = stats.totals[rank][head];
    const uint64_t packed = static_cast<uint64_t>(__float_as_uint(totals.x)) |
                            (static_cast<uint64_t>(__float_as_uint(totals.y)) << 32);
    ptx::store_async_8(ptx::peer_address(&stats.totals[rank][head], peer),
                       packed,
                       ptx::peer_address(&stats.received, peer));
    if (first < last) {
      const int share = rank - (rank > peer ? 1 : 0);  // which of the peer's shares this is
      ptx::bulk_copy_to_peer(
          shared.received() + (share * (peer_end - peer_begin) + first - peer_begin) * kJoinDims,
          shared.partial() + head * AttentionShape<kHeads>::kPartialStride +
              (first - head * kHeadChunks) * kJoinDims,
          static_cast<uint32_t>((last - first) * kJoinDims * 4),
          &stats.received,
          peer);
    }
  }
  ptx::barrier_wait_cluster(&stats.received, 0);
}

/// What the outputs of a head are multiplied with; writes its log-sums where `reports`.
__device__ __forceinline__ float finish_head(const SparseAttentionParams& params,
                                             int64_t row,
                                             float sink,
                                             float maximum,
                                             float sum,
                                             bool reports) {
  const float infinity = __int_as_float(0x7F800000);
  const bool empty = maximum <= kNoMaximum;
  const float sink_power = sink * ptx::kLog2E;
  const float top = fmaxf(maximum, sink_power);
  const float weight = ptx::exp2_fast(maximum - top);
  const float denominator = __fmaf_rn(sum, weight, ptx::exp2_fast(sink_power - top));
  if (reports && params.lse != nullptr) {
    params.lse[row] = empty ? -infinity : __fmaf_rn(maximum, kLnOf2, logf(sum));
  }
  if (reports && params.lse_with_sink != nullptr) {
    params.lse_with_sink[row] =
        empty || sink == infinity ? sink : __fmaf_rn(top, kLnOf2, logf(denominator));
  }
  return empty || sink == infinity ? 0.0F : __fdiv_rn(weight, denominator);
}

__device__ __forceinline__ void add_part(float (&o)[kJoinDims],
                                         float4 low,
                                         float4 high,
                                         float factor) {
  const float part[kJoinDims] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < kJoinDims; ++i) {
    o[i] = __fmaf_rn(part[i], factor, o[i]);
  }
}

__device__ __forceinline__ void store_output(const SparseAttentionParams& params,
                                             int64_t row,
                                             int dim,
                                             float (&o)[kJoinDims],
                                             const float2* turns) {
  if (params.positions != nullptr && dim >= kKvNopeDims) {
#pragma unroll
    for (int i = 0; i < kJoinDims / 2; ++i) {
      const float2 turn = turns[(dim - kKvNopeDims) / 2 + i];
      o[2 * i] = to_bf16(o[2 * i]);
      o[2 * i + 1] = to_bf16(o[2 * i + 1]);
      rotate_pair(o[2 * i], o[2 * i + 1], make_float2(turn.x, -turn.y));
    }
  }
  *reinterpret_cast<uint4*>(params.o + row * kKvDims + dim) =
      make_uint4(ptx::pack_bf16(o[0], o[1]),
                 ptx::pack_bf16(o[2], o[3]),
                 ptx::pack_bf16(o[4], o[5]),
                 ptx::pack_bf16(o[6], o[7]));
}

/// Joins the clusters of a query and head group: the last block of each rank to come here does it.
template <int kHeads>
__device__ __forceinline__ void join_clusters(const SparseAttentionParams& params,
                                              const AttentionShared<kHeads>& shared,
                                              const JoinWorkspace& workspace,
                                              int64_t place,
                                              int64_t first_row,
                                              int rank,
                                              int begin,
                                              int end) {
  const int thread = static_cast<int>(threadIdx.x);
  const int32_t cluster = params.plan.cluster;
  const int32_t clusters = params.plan.clusters;
  AttentionStats<kHeads>& stats = shared.stats();
  __threadfence();
  block_sync<kHeads>();
  if (thread == 0) {
    int32_t* counter = workspace.counters + place * cluster + rank;
    stats.is_last = atomicAdd(counter, 1) == clusters - 1 ? 1 : 0;
    if (stats.is_last != 0) {
      *counter = 0;  // ready for the next launch
    }
    __threadfence();
  }
  block_sync<kHeads>();
  if (stats.is_last == 0) {
    return;
  }
  float* factors = shared.received();  // by cluster and head; what it held was joined
  if (thread < kHeads) {
    const float* numbers =
        workspace.statistics + (place * clusters * cluster + rank) * 2 * kHeads + thread;
    const int64_t step = static_cast<int64_t>(cluster) * 2 * kHeads;
    float maximum = kNoMaximum;
#pragma unroll 8
    for (int32_t p = 0; p < clusters; ++p) {
      maximum = fmaxf(maximum, __ldcg(numbers + p * step));
    }
    float sum = 0;
#pragma unroll 8
    for (int32_t p = 0; p < clusters; ++p) {
      const float factor = ptx::exp2_fast(__ldcg(numbers + p * step) - maximum);
      sum = __fmaf_rn(__ldcg(numbers + p * step + kHeads), factor, sum);
      factors[p * kHeads + thread] = factor;
    }
    const float factor =
        finish_head(params, first_row + thread, stats.sinks[thread], maximum, sum, rank == 0);
    for (int32_t p = 0; p < clusters; ++p) {
      factors[p * kHeads + thread] *= factor;
    }
  }
  block_sync<kHeads>();
  for (int chunk = begin + thread; chunk < end; chunk += AttentionShape<kHeads>::kThreads) {
    const int head = chunk / kHeadChunks;
    const int dim = chunk % kHeadChunks * kJoinDims;
    float o[kJoinDims] = {};
#pragma unroll 8
    for (int32_t p = 0; p < clusters; ++p) {
      const auto* from = reinterpret_cast<const float4*>(
          workspace.outputs + ((place * clusters + p) * kHeads + head) * kKvDims + dim);
      add_part(o, __ldcg(from), __ldcg(from + 1), factors[p * kHeads + head]);
    }
    store_output(params, first_row + head, dim, o, stats.turns);
  }
}

template <int kHeads>
__device__ __forceinline__ void join_partials(const SparseAttentionParams& params,
                                              const AttentionShared<kHeads>& shared,
                                              int32_t query,
                                              int32_t head_group) {
  const int thread = static_cast<int>(threadIdx.x);
  const int32_t cluster = params.plan.cluster;
  const int32_t clusters = params.plan.clusters;
  const int rank = static_cast<int>(ptx::cluster_rank());
  const auto part = static_cast<int32_t>(ptx::cluster_index());
  AttentionStats<kHeads>& stats = shared.stats();
  const int begin = slice_begin<kHeads>(rank, stats.slice);
  const int end = slice_begin<kHeads>(rank + 1, stats.slice);
  const JoinWorkspace workspace = join_workspace(params);
  const int64_t place = static_cast<int64_t>(query) * (params.heads / kHeads) + head_group;
  const int64_t first_row = place * kHeads;  // of the outputs, [query][head]
  if (thread < kHeads) {
    float maximum = kNoMaximum;
    for (int32_t from = 0; from < cluster; ++from) {
      maximum = fmaxf(maximum, stats.totals[from][thread].x);
    }
    float sum = 0;
    for (int32_t from = 0; from < cluster; ++from) {
      const float2 totals = stats.totals[from][thread];
      const float factor = ptx::exp2_fast(totals.x - maximum);
      sum = __fmaf_rn(totals.y, factor, sum);
      stats.factors[from][thread] = factor;
    }
    if (clusters == 1) {
      const float factor =
          finish_head(params, first_row + thread, stats.sinks[thread], maximum, sum, rank == 0);
      for (int32_t from = 0; from < cluster; ++from) {
        stats.factors[from][thread] *= factor;
      }
    } else {
      float* numbers =
          workspace.statistics + ((place * clusters + part) * cluster + rank) * 2 * kHeads + thread;
      numbers[0] = maximum;
      numbers[kHeads] = sum;
    }
  }
  block_sync<kHeads>();
#pragma unroll 2
  for (int chunk = begin + thread; chunk < end; chunk += AttentionShape<kHeads>::kThreads) {
    const int head = chunk / kHeadChunks;
    const int dim = chunk % kHeadChunks * kJoinDims;
    const float* own = shared.partial() + head * AttentionShape<kHeads>::kPartialStride + dim;
    const float* share = shared.received() + (chunk - begin) * kJoinDims;
    float o[kJoinDims] = {};
    for (int32_t from = 0; from < cluster; ++from) {
      const auto* at = reinterpret_cast<const float4*>(from == rank ? own : share);
      add_part(o, at[0], at[1], stats.factors[from][head]);
      share += from == rank ? 0 : (end - begin) * kJoinDims;
    }
    if (clusters == 1) {
      store_output(params, first_row + head, dim, o, stats.turns);
    } else {
      auto* to = reinterpret_cast<float4*>(
          workspace.outputs + ((place * clusters + part) * kHeads + head) * kKvDims + dim);
      to[0] = make_float4(o[0], o[1], o[2], o[3]);
      to[1] = make_float4(o[4], o[5], o[6], o[7]);
    }
  }
  if (clusters > 1) {
    join_clusters<kHeads>(params, shared, workspace, place, first_row, rank, begin, end);
  }
}

}  // namespace baleen::kernels
