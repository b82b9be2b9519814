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

/// Eight dims of one head relative to 2^maximum.
struct JoinedDims {
  float o[kJoinDims];
  float maximum;
  float sum;
};

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

__device__ __forceinline__ void add_part(
    JoinedDims& joined, float maximum, float sum, float4 low, float4 high) {
  const float weight = ptx::exp2_fast(maximum - joined.maximum);
  joined.sum = __fmaf_rn(sum, weight, joined.sum);
  const float o[kJoinDims] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < kJoinDims; ++i) {
    joined.o[i] = __fmaf_rn(o[i], weight, joined.o[i]);
  }
}

template <int kHeads>
inline constexpr int kChunks = kHeads * kKvDims / kJoinDims;  // of a head group
inline constexpr int kHeadChunks = kKvDims / kJoinDims;

/// First chunk of the slice that block `rank` of the cluster joins.
template <int kHeads>
__device__ __forceinline__ int slice_begin(int rank, int cluster) {
  return kChunks<kHeads> * rank / cluster;
}

/// Sends every peer its slice of this block's partial output, with maxima and sums, and waits for
/// what the peers send. One bulk copy per peer and head.
template <int kHeads>
__device__ __forceinline__ void exchange_partials(const AttentionShared<kHeads>& shared,
                                                  int32_t cluster) {
  AttentionStats<kHeads>& stats = shared.stats();
  const int rank = static_cast<int>(blockIdx.x) % cluster;
  const int begin = slice_begin<kHeads>(rank, cluster);
  const int end = slice_begin<kHeads>(rank + 1, cluster);
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
    const int slice = slice_begin<kHeads>(peer, cluster);
    const int slice_end = slice_begin<kHeads>(peer + 1, cluster);
    const int first = max(slice, head * kHeadChunks);
    const int last = min(slice_end, (head + 1) * kHeadChunks);
    const float2 totals = stats.totals[rank][head];
    const uint64_t packed = static_cast<uint64_t>(__float_as_uint(totals.x)) |
                            (static_cast<uint64_t>(__float_as_uint(totals.y)) << 32);
    ptx::store_async_8(ptx::peer_address(&stats.totals[rank][head], peer),
                       packed,
                       ptx::peer_address(&stats.received, peer));
    if (first < last) {
      const int share = rank - (rank > peer ? 1 : 0);  // which of the peer's shares this is
      ptx::bulk_copy_to_peer(
          shared.received() + (share * (slice_end - slice) + first - slice) * kJoinDims,
          shared.partial() + head * AttentionShape<kHeads>::kPartialStride +
              (first - head * kHeadChunks) * kJoinDims,
          static_cast<uint32_t>((last - first) * kJoinDims * 4),
          &stats.received,
          peer);
    }
  }
  ptx::barrier_wait_cluster(&stats.received, 0);
}

/// Joins the blocks of a cluster, in the order of ranks. `chunk` counts from the head group's
/// first.
template <int kHeads>
__device__ __forceinline__ JoinedDims
join_cluster(const AttentionShared<kHeads>& shared, int32_t cluster, int32_t rank, int chunk) {
  const AttentionStats<kHeads>& stats = shared.stats();
  const int head = chunk / kHeadChunks;
  const int begin = slice_begin<kHeads>(rank, cluster);
  const int slice_chunks = slice_begin<kHeads>(rank + 1, cluster) - begin;
  const float* own = shared.partial() + head * AttentionShape<kHeads>::kPartialStride +
                     chunk % kHeadChunks * kJoinDims;
  const float* shares = shared.received() + (chunk - begin) * kJoinDims;
  JoinedDims joined{};
  joined.maximum = kNoMaximum;
  for (int32_t from = 0; from < cluster; ++from) {
    joined.maximum = fmaxf(joined.maximum, stats.totals[from][head].x);
  }
  for (int32_t from = 0; from < cluster; ++from) {
    const float2 totals = stats.totals[from][head];
    const auto* o = reinterpret_cast<const float4*>(
        from == rank ? own : shares + (from - (from > rank ? 1 : 0)) * slice_chunks * kJoinDims);
    add_part(joined, totals.x, totals.y, o[0], o[1]);
  }
  return joined;
}

__device__ __forceinline__ void store_result(const SparseAttentionParams& params,
                                             int32_t query,
                                             int32_t head,
                                             int dim,
                                             const JoinedDims& joined,
                                             float sink,
                                             const float2* turns) {
  const bool empty = joined.maximum <= kNoMaximum;
  const float infinity = __int_as_float(0x7F800000);
  const float sink_power = sink * ptx::kLog2E;
  const float maximum = fmaxf(joined.maximum, sink_power);
  const float weight = ptx::exp2_fast(joined.maximum - maximum);
  const float denominator = __fmaf_rn(joined.sum, weight, ptx::exp2_fast(sink_power - maximum));
  const float factor = empty || sink == infinity ? 0.0F : __fdiv_rn(weight, denominator);
  float o[kJoinDims];
#pragma unroll
  for (int i = 0; i < kJoinDims; ++i) {
    o[i] = factor == 0.0F ? 0.0F : to_bf16(joined.o[i] * factor);
  }
  if (params.positions != nullptr && dim >= kKvNopeDims) {
#pragma unroll
    for (int i = 0; i < kJoinDims / 2; ++i) {
      const float2 turn = turns[(dim - kKvNopeDims) / 2 + i];
      rotate_pair(o[2 * i], o[2 * i + 1], make_float2(turn.x, -turn.y));
    }
  }
  const int64_t row = static_cast<int64_t>(query) * params.heads + head;
  *reinterpret_cast<uint4*>(params.o + row * kKvDims + dim) =
      make_uint4(ptx::pack_bf16(o[0], o[1]),
                 ptx::pack_bf16(o[2], o[3]),
                 ptx::pack_bf16(o[4], o[5]),
                 ptx::pack_bf16(o[6], o[7]));
  if (dim == 0) {
    if (params.lse != nullptr) {
      params.lse[row] = empty ? -infinity : __fmaf_rn(joined.maximum, kLnOf2, logf(joined.sum));
    }
    if (params.lse_with_sink != nullptr) {
      params.lse_with_sink[row] =
          empty || sink == infinity ? sink : __fmaf_rn(maximum, kLnOf2, logf(denominator));
    }
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
  const int32_t rank = static_cast<int32_t>(blockIdx.x) % cluster;
  const int32_t part = static_cast<int32_t>(blockIdx.x) / cluster;
  const int begin = slice_begin<kHeads>(rank, cluster);
  const int end = slice_begin<kHeads>(rank + 1, cluster);
  AttentionStats<kHeads>& stats = shared.stats();
  const JoinWorkspace workspace = join_workspace(params);
  const int64_t place = static_cast<int64_t>(query) * (params.heads / kHeads) + head_group;
  for (int chunk = begin + thread; chunk < end; chunk += AttentionShape<kHeads>::kThreads) {
    const int head = chunk / kHeadChunks;
    const int dim = chunk % kHeadChunks * kJoinDims;
    const JoinedDims joined = join_cluster<kHeads>(shared, cluster, rank, chunk);
    if (clusters == 1) {
      store_result(
          params, query, head_group * kHeads + head, dim, joined, stats.sinks[head], stats.turns);
      continue;
    }
    auto* to = reinterpret_cast<float4*>(
        workspace.outputs + ((place * clusters + part) * kHeads + head) * kKvDims + dim);
    to[0] = make_float4(joined.o[0], joined.o[1], joined.o[2], joined.o[3]);
    to[1] = make_float4(joined.o[4], joined.o[5], joined.o[6], joined.o[7]);
    if (chunk == begin || dim == 0) {
      float* numbers =
          workspace.statistics + ((place * clusters + part) * cluster + rank) * 2 * kHeads;
      numbers[head] = joined.maximum;
      numbers[kHeads + head] = joined.sum;
    }
  }
  if (clusters == 1) {
    return;
  }
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
  for (int chunk = begin + thread; chunk < end; chunk += AttentionShape<kHeads>::kThreads) {
    const int head = chunk / kHeadChunks;
    const int dim = chunk % kHeadChunks * kJoinDims;
    const float* numbers = workspace.statistics + (place * clusters * cluster + rank) * 2 * kHeads;
    const int64_t step = static_cast<int64_t>(cluster) * 2 * kHeads;
    JoinedDims joined{};
    joined.maximum = kNoMaximum;
#pragma unroll 4
    for (int32_t p = 0; p < clusters; ++p) {
      joined.maximum = fmaxf(joined.maximum, __ldcg(numbers + p * step + head));
    }
#pragma unroll 4
    for (int32_t p = 0; p < clusters; ++p) {
      const auto* from = reinterpret_cast<const float4*>(
          workspace.outputs + ((place * clusters + p) * kHeads + head) * kKvDims + dim);
      const float4 low = __ldcg(from);
      const float4 high = __ldcg(from + 1);
      add_part(joined,
               __ldcg(numbers + p * step + head),
               __ldcg(numbers + p * step + kHeads + head),
               low,
               high);
    }
    store_result(
        params, query, head_group * kHeads + head, dim, joined, stats.sinks[head], stats.turns);
  }
}

}  // namespace baleen::kernels
