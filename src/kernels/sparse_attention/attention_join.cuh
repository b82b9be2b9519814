#pragma once
// Last step of the attention kernel: partial outputs of the blocks of a cluster are exchanged
// through shared memory, those of several clusters through the workspace, and the result is
// divided, turned back and stored. Run by the output groups: a second copy of this code for the
// score groups would cost more by its fetching than their help saves. A thread takes eight dims of
// a head. Blocks of 64 heads have their own end (wide_join.cuh) and share what joins clusters.
//
//   finish_block<kHeads>(params, shared, query, head_group);
//
// Always in the order of ranks, then of clusters: the same launch gives the same bits.
// Clusters meet in the workspace (join_workspace.cuh), then each block joins its share of its
// rank's slice, and of those that have gone.

#include <cstdint>

#include "kernels/cache_entry/row_math.cuh"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/convert.cuh"
#include "kernels/ptx/exp2.cuh"
#include "kernels/ptx/remote_arrive.cuh"
#include "kernels/ptx/role_registers.cuh"
#include "kernels/sparse_attention/attention_tile.cuh"
#include "kernels/sparse_attention/join_workspace.cuh"

namespace baleen::kernels {

inline constexpr int kJoinDims = 8;
inline constexpr int kPartsAtOnce = 8;  // of clusters, read at the same time
inline constexpr float kLnOf2 = 0.6931471805599453F;

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
  if (output_thread<kHeads>() == 0) {
    ptx::barrier_expect_bytes(
        &stats.received,
        static_cast<uint32_t>((cluster - 1) * ((end - begin) * kJoinDims * 4 + kHeads * 8)));
  }
  for (int item = output_thread<kHeads>(); item < cluster * kHeads; item += kOutputThreads) {
    const int peer = item / kHeads;
    const int head = item % kHeads;
    if (peer == rank) {
      continue;
    }
    const int peer_begin = slice_begin<kHeads>(peer, slice);
    const int peer_end = slice_begin<kHeads>(peer + 1, slice);
    const int first = max(peer_begin, head * kHeadChunks);
    const int last = min(peer_end, (head + 1) * kHeadChunks);
    const float2 totals = shared.totals(rank)[head];
    const uint64_t packed = static_cast<uint64_t>(__float_as_uint(totals.x)) |
                            (static_cast<uint64_t>(__float_as_uint(totals.y)) << 32);
    ptx::store_async_8(ptx::peer_address(&shared.totals(rank)[head], peer),
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
  ptx::barrier_wait_cluster_or_leave(&stats.received, 0);
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

/// Eight dims from `dim` on.
__device__ __forceinline__ void store_dims(const SparseAttentionParams& params,
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

/// Eight places from the line order of 64 heads (wide_tile.cuh): quads (j, t) and (j + 1, t).
__device__ __forceinline__ void store_places(const SparseAttentionParams& params,
                                             int64_t row,
                                             int place,
                                             float (&o)[kJoinDims],
                                             const float2* turns) {
  const int block = place / 64 * 64;
  const int t = place % 64 / 16;
  const int j = place % 16 / 4;
  const bool is_rope = place >= kKvNopeDims;
  const int dim = block + (is_rope ? t / 2 * 32 + 8 * j + 4 * (t % 2) : 16 * j + 4 * t);
  const int next = is_rope ? 8 : 16;
  uint16_t* to = params.o + row * kKvDims + dim;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float* quad = o + 4 * i;
    if (!is_rope) {
      const float second = quad[1];  // dims stand as 0, 2, 1, 3
      quad[1] = quad[2];
      quad[2] = second;
    } else if (params.positions != nullptr) {
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        const float2 turn = turns[(dim + next * i - kKvNopeDims) / 2 + pair];
        quad[2 * pair] = to_bf16(quad[2 * pair]);
        quad[2 * pair + 1] = to_bf16(quad[2 * pair + 1]);
        rotate_pair(quad[2 * pair], quad[2 * pair + 1], make_float2(turn.x, -turn.y));
      }
    }
    *reinterpret_cast<uint2*>(to + next * i) =
        make_uint2(ptx::pack_bf16(quad[0], quad[1]), ptx::pack_bf16(quad[2], quad[3]));
  }
}

/// Chunk `chunk` of a head: eight dims, or eight places of a line.
template <int kHeads>
__device__ __forceinline__ void store_output(const SparseAttentionParams& params,
                                             int64_t row,
                                             int chunk,
                                             float (&o)[kJoinDims],
                                             const float2* turns) {
  if constexpr (kHeads == 64) {
    store_places(params, row, chunk * kJoinDims, o, turns);
  } else {
    store_dims(params, row, chunk * kJoinDims, o, turns);
  }
}

/// Joins chunks [begin, end) of all clusters. A warp computes the factors of a head.
template <int kHeads>
__device__ __forceinline__ void join_chunks(const SparseAttentionParams& params,
                                            const AttentionShared<kHeads>& shared,
                                            const JoinWorkspace& workspace,
                                            int64_t place,
                                            int64_t first_row,
                                            int rank,
                                            int begin,
                                            int end) {
  const int thread = output_thread<kHeads>();
  const int lane = thread % 32;
  const int32_t cluster = params.plan.cluster;
  const int32_t clusters = params.plan.clusters;
  AttentionStats<kHeads>& stats = shared.stats();
  float* factors = shared.received();  // by head and cluster; what it held was joined
  float* sums = factors + kHeads * kMaxClusters;
  const int first_head = begin / kHeadChunks;
  const int end_head = (end + kHeadChunks - 1) / kHeadChunks;
  for (int head = first_head + thread / 32; head < end_head; head += kOutputThreads / 32) {
    const float* numbers =
        workspace.statistics + (place * clusters * cluster + rank) * 2 * kHeads + head;
    const int64_t step = static_cast<int64_t>(cluster) * 2 * kHeads;
    float maxima[2];
    float maximum = kNoMaximum;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int p = lane + 32 * i;
      maxima[i] = p < clusters ? __ldcg(numbers + p * step) : kNoMaximum;
      if (p < clusters) {
        sums[head * kMaxClusters + p] = __ldcg(numbers + p * step + kHeads);
      }
      maximum = fmaxf(maximum, maxima[i]);
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      maximum = fmaxf(maximum, __shfl_xor_sync(kWholeWarp, maximum, distance));
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int p = lane + 32 * i;
      maxima[i] = ptx::exp2_fast(maxima[i] - maximum);
      if (p < clusters) {
        factors[head * kMaxClusters + p] = maxima[i];
      }
    }
    __syncwarp();
    float sum = 0;
    for (int32_t p = 0; p < clusters; ++p) {
      sum = __fmaf_rn(sums[head * kMaxClusters + p], factors[head * kMaxClusters + p], sum);
    }
    __syncwarp();
    const int chunk = head * kHeadChunks;
    const float factor = finish_head(params,
                                     first_row + head,
                                     stats.sinks[head],
                                     maximum,
                                     sum,
                                     lane == 0 && begin <= chunk && chunk < end);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int p = lane + 32 * i;
      if (p < clusters) {
        factors[head * kMaxClusters + p] = maxima[i] * factor;
      }
    }
  }
  output_sync();
  for (int chunk = begin + thread; chunk < end; chunk += kOutputThreads) {
    const int head = chunk / kHeadChunks;
    const int place_in_head = chunk % kHeadChunks * kJoinDims;
    float o[kJoinDims] = {};
    const auto* from = reinterpret_cast<const float4*>(
        workspace.outputs + (place * clusters * kHeads + head) * kKvDims + place_in_head);
#pragma unroll 1
    for (int32_t first = 0; first < clusters; first += kPartsAtOnce) {
      float4 low[kPartsAtOnce];
      float4 high[kPartsAtOnce];
#pragma unroll
      for (int32_t p = 0; p < kPartsAtOnce; ++p) {  // all are under way before the first is used
        if (first + p < clusters) {
          const float4* part = from + static_cast<int64_t>(first + p) * (kHeads * kKvDims / 4);
          low[p] = __ldcg(part);
          high[p] = __ldcg(part + 1);
        }
      }
#pragma unroll
      for (int32_t p = 0; p < kPartsAtOnce; ++p) {
        if (first + p < clusters) {
          add_part(o, low[p], high[p], factors[head * kMaxClusters + first + p]);
        }
      }
    }
    store_output<kHeads>(params, first_row + head, chunk % kHeadChunks, o, stats.turns);
  }
}

/// Joins the clusters of a query and head group: each block its share of its rank's slice.
template <int kHeads>
__device__ __forceinline__ void join_clusters(const SparseAttentionParams& params,
                                              const AttentionShared<kHeads>& shared,
                                              const JoinWorkspace& workspace,
                                              int64_t place,
                                              int64_t first_row,
                                              int rank,
                                              int part,
                                              int begin,
                                              int end) {
  const int32_t clusters = params.plan.clusters;
  AttentionStats<kHeads>& stats = shared.stats();
  JoinCounter* counter = workspace.counters + place * params.plan.cluster + rank;
  output_sync();  // the slice is written
  if (output_thread<kHeads>() == 0) {
    uint64_t left = 0;
    stats.joins =
        meet_clusters(counter, clusters, part, grid_fits_at_once(params.plan.cluster), left) ? 1
                                                                                             : 0;
    stats.left = left;
  }
  output_sync();
  if (stats.joins != 0) {
    const uint64_t others = ((uint64_t{1} << clusters) - 1) & ~(uint64_t{1} << part);
    const int share = (end - begin + clusters - 1) / clusters;
    const bool whole = stats.left == others;  // all others have gone
    for (int32_t of = whole ? part : 0; of < clusters; ++of) {
      if (of == part || ((stats.left >> of) & 1) != 0) {
        join_chunks<kHeads>(params,
                            shared,
                            workspace,
                            place,
                            first_row,
                            rank,
                            whole ? begin : min(begin + of * share, end),
                            whole ? end : min(begin + (of + 1) * share, end));
        output_sync();  // before the next share's factors
      }
      if (whole) {
        break;
      }
    }
  }
  if (output_thread<kHeads>() == 0) {
    leave_clusters(counter, clusters);
  }
}

template <int kHeads>
__device__ __forceinline__ void join_partials(const SparseAttentionParams& params,
                                              const AttentionShared<kHeads>& shared,
                                              int32_t query,
                                              int32_t head_group) {
  const int thread = output_thread<kHeads>();
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
      maximum = fmaxf(maximum, shared.totals(from)[thread].x);
    }
    float sum = 0;
    for (int32_t from = 0; from < cluster; ++from) {
      const float2 totals = shared.totals(from)[thread];
      const float factor = ptx::exp2_fast(totals.x - maximum);
      sum = __fmaf_rn(totals.y, factor, sum);
      shared.factors(from)[thread] = factor;
    }
    if (clusters == 1) {
      const float factor =
          finish_head(params, first_row + thread, stats.sinks[thread], maximum, sum, rank == 0);
      for (int32_t from = 0; from < cluster; ++from) {
        shared.factors(from)[thread] *= factor;
      }
    } else {
      float* numbers =
          workspace.statistics + ((place * clusters + part) * cluster + rank) * 2 * kHeads + thread;
      numbers[0] = maximum;
      numbers[kHeads] = sum;
    }
  }
  output_sync();
#pragma unroll 2
  for (int chunk = begin + thread; chunk < end; chunk += kOutputThreads) {
    const int head = chunk / kHeadChunks;
    const int dim = chunk % kHeadChunks * kJoinDims;
    const float* own = shared.partial() + head * AttentionShape<kHeads>::kPartialStride + dim;
    const float* share = shared.received() + (chunk - begin) * kJoinDims;
    float o[kJoinDims] = {};
    for (int32_t from = 0; from < cluster; ++from) {
      const auto* at = reinterpret_cast<const float4*>(from == rank ? own : share);
      add_part(o, at[0], at[1], shared.factors(from)[head]);
      share += from == rank ? 0 : (end - begin) * kJoinDims;
    }
    if (clusters == 1) {
      store_output<kHeads>(params, first_row + head, chunk % kHeadChunks, o, stats.turns);
    } else {
      auto* to = reinterpret_cast<float4*>(
          workspace.outputs + ((place * clusters + part) * kHeads + head) * kKvDims + dim);
      to[0] = make_float4(o[0], o[1], o[2], o[3]);
      to[1] = make_float4(o[4], o[5], o[6], o[7]);
    }
  }
  if (clusters > 1) {
    join_clusters<kHeads>(params, shared, workspace, place, first_row, rank, part, begin, end);
  }
}

/// The output groups, at their end: exchanges the block's partial output with those of its
/// cluster, joins and stores.
template <int kHeads>
__device__ __forceinline__ void finish_block(const SparseAttentionParams& params,
                                             const AttentionShared<kHeads>& shared,
                                             int32_t query,
                                             int32_t head_group) {
  const int32_t cluster = params.plan.cluster;
  if (cluster > 1) {
    ptx::fence_async_shared();  // the copy engine reads the partial output
    output_sync();
    ptx::cluster_arrive_relaxed();  // no fence needed: the copies' own barriers order them
    ptx::cluster_wait();            // peers are done with the memory that receives
    exchange_partials<kHeads>(shared, cluster);
    __syncwarp();
    ptx::cluster_arrive_relaxed();
  } else {
    output_sync();
  }
  join_partials<kHeads>(params, shared, query, head_group);
  if (cluster > 1) {
    __syncwarp();
    ptx::cluster_wait();  // copies out of this block's memory have ended
  }
}

}  // namespace baleen::kernels
