#pragma once
// End of a block of 64 heads: the output goes from the accumulators to memory, joined with that of
// the other block of a cluster of two. A block owns the dims of the output group of its rank: a
// thread of the other group sends what it holds straight to the thread of the other block that
// holds the same places, as FP16 under a power of two per thread, line and head, which halves what
// crosses between multiprocessors: the error is below 2^-12 of an element (2^-39 of the largest of
// sixteen, if that is more), where the output is rounded by 2^-9. The score group, which has
// nothing else to do, exchanges maxima and sums and computes the factors meanwhile.
//
//   publish_wide_factors(params, shared, maximum, sum, query, head_group);        // score group
//   finish_wide_block(params, shared, acc, tiles, query, head_group, group);      // output groups
//
// Where the rows of a query are spread over several clusters, the blocks of a cluster share heads
// out instead, leave the result in the workspace and join there (attention_join.cuh).
//
// A thread's places of a line (wide_tile.cuh) are pairs; with those of its neighbour they make
// eight dims that follow each other.

#include <cstdint>

#include "kernels/cache_entry/row_math.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/convert.cuh"
#include "kernels/ptx/exp2.cuh"
#include "kernels/ptx/push_to_peer.cuh"
#include "kernels/ptx/remote_arrive.cuh"
#include "kernels/ptx/role_registers.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/sparse_attention/attention_join.cuh"
#include "kernels/sparse_attention/wide_tile.cuh"

namespace baleen::kernels {

using WideAccumulators = float[128];

inline constexpr int kLineChunks = 4;  // of 16 bytes: a thread's places of a line, of two heads
inline constexpr int kPairLines = kKvDims / kOutputGroups / 64;
inline constexpr int kPairChunks = kPairLines * kLineChunks;
inline constexpr uint32_t kPairScales =
    kPairChunks * kGroupThreads * 16;  // begin behind the chunks
inline constexpr uint32_t kPairLineBytes = kGroupThreads * (kLineChunks * 16 + 8);
static_assert(kPairLines * kPairLineBytes <= kTileBytes);

/// Place of a tile that the last two tiles of a block leave unused: the other block sends there.
__device__ __forceinline__ int spare_buffer(int32_t tiles) {
  return tiles % AttentionShape<kWideHeads>::kBuffers;
}

/// An output warp: tells the other block that nothing of this warp's will touch the spare place.
__device__ __forceinline__ void offer_spare(const AttentionShared<kWideHeads>& shared) {
  if (threadIdx.x % 32 == 0) {
    ptx::arrive_at_peer(ptx::peer_address(&shared.stats().may_send, ptx::cluster_rank() ^ 1U));
  }
}

/// Score group: thread 4 i of a warp holds maxima and sums of two heads. Exchanges them, writes the
/// factors of both blocks' outputs and, on rank 0, the log-sums.
__device__ __forceinline__ void publish_wide_factors(const SparseAttentionParams& params,
                                                     const AttentionShared<kWideHeads>& shared,
                                                     const float (&maximum)[2],
                                                     const float (&sum)[2],
                                                     int32_t query,
                                                     int32_t head_group) {
  AttentionStats<kWideHeads>& stats = shared.stats();
  if (threadIdx.x % 4 != 0) {
    return;
  }
  const bool is_pair = params.plan.cluster == 2;
  const uint32_t rank = is_pair ? ptx::cluster_rank() : 0;
  const int head =
      static_cast<int>(threadIdx.x) / 32 % 4 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
  if (is_pair) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint64_t packed = static_cast<uint64_t>(__float_as_uint(maximum[h])) |
                              (static_cast<uint64_t>(__float_as_uint(sum[h])) << 32);
      ptx::store_async_8(ptx::peer_address(&stats.peer_totals[head + 8 * h], rank ^ 1U),
                         packed,
                         ptx::peer_address(&stats.totals_came, rank ^ 1U));
    }
  }
  const int64_t row =
      (static_cast<int64_t>(query) * (params.heads / kWideHeads) + head_group) * kWideHeads + head;
  float sink[2] = {__int_as_float(0xFF800000), __int_as_float(0xFF800000)};  // -inf
  if (params.sink != nullptr) {
    sink[0] = __ldg(params.sink + head_group * kWideHeads + head);
    sink[1] = __ldg(params.sink + head_group * kWideHeads + head + 8);
  }
  if (is_pair) {
    ptx::barrier_wait_cluster_or_leave(&stats.totals_came, 0);
  }
#pragma unroll 1
  for (int h = 0; h < 2; ++h) {
    const float own_maximum = h == 0 ? maximum[0] : maximum[1];
    const float own_sum = h == 0 ? sum[0] : sum[1];
    const float2 peer = is_pair ? stats.peer_totals[head + 8 * h] : make_float2(kNoMaximum, 0.0F);
    // The same in both blocks: the part of rank 0 comes first.
    const float2 first = rank == 0 ? make_float2(own_maximum, own_sum) : peer;
    const float2 second = rank == 0 ? peer : make_float2(own_maximum, own_sum);
    const float top = fmaxf(first.x, second.x);
    const float of_first = ptx::exp2_fast(first.x - top);
    const float of_second = ptx::exp2_fast(second.x - top);
    const float total = __fmaf_rn(second.y, of_second, first.y * of_first);
    float factor = 1;
    if (params.plan.clusters == 1) {
      factor = finish_head(params, row + 8 * h, h == 0 ? sink[0] : sink[1], top, total, rank == 0);
    } else {
      const JoinWorkspace workspace = join_workspace(params);
      const int64_t place = static_cast<int64_t>(query) * (params.heads / kWideHeads) + head_group;
      float* numbers =
          workspace.statistics +
          ((place * params.plan.clusters + static_cast<int32_t>(ptx::cluster_index())) *
               params.plan.cluster +
           static_cast<int32_t>(rank)) *
              2 * kWideHeads +
          head + 8 * h;
      numbers[0] = top;
      numbers[kWideHeads] = total;
    }
    stats.part_factors[0][head + 8 * h] = of_first * factor;
    stats.part_factors[1][head + 8 * h] = of_second * factor;
  }
}

/// Sends a thread's accumulators to the same thread of the other block; `thread` is its number
/// among those that send.
__device__ __forceinline__ void send_to_pair(const AttentionShared<kWideHeads>& shared,
                                             const WideAccumulators& acc,
                                             uint32_t thread) {
  AttentionStats<kWideHeads>& stats = shared.stats();
  const uint32_t peer = ptx::cluster_rank() ^ 1U;
  const uint32_t place = ptx::peer_address(shared.base + stats.peer_spare * kTileBytes, peer);
  const uint32_t came = ptx::peer_address(&stats.lines_came[0], peer);
  ptx::barrier_wait_cluster_or_leave(&stats.may_send, 0);
#pragma unroll
  for (int line = 0; line < kPairLines; ++line) {
    const float* from = acc + 32 * line;
    const uint32_t barrier = came + line * sizeof(ptx::Barrier);
    float scale[2];
    uint32_t inverse[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most = 0;
#pragma unroll
      for (int i = 2 * h; i < 32; i += 4) {
        most = fmaxf(most, fmaxf(fabsf(from[i]), fabsf(from[i + 1])));
      }
      // Its power of two goes to 2^14; not above 2^125, whose inverse is still a normal number.
      const uint32_t power = max(__float_as_uint(most) & 0x7F800000U, 16U << 23);
      scale[h] = __uint_as_float((268U << 23) - power);
      inverse[h] = power - (14U << 23);
    }
    ptx::store_async_8(
        place + kPairScales + (line * kGroupThreads + thread) * 8,
        static_cast<uint64_t>(inverse[0]) | (static_cast<uint64_t>(inverse[1]) << 32),
        barrier);
#pragma unroll
    for (int chunk = 0; chunk < kLineChunks; ++chunk) {
      uint32_t word[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        word[i] = ptx::pack_f16(from[8 * chunk + 2 * i] * scale[i % 2],
                                from[8 * chunk + 2 * i + 1] * scale[i % 2]);
      }
      ptx::push_float4(place + ((line * kLineChunks + chunk) * kGroupThreads + thread) * 16,
                       make_float4(__uint_as_float(word[0]),
                                   __uint_as_float(word[1]),
                                   __uint_as_float(word[2]),
                                   __uint_as_float(word[3])),
                       barrier);
    }
  }
}

/// Multiplies a line's places with the factors and adds what the other block sent to `place`.
__device__ __forceinline__ void join_line(WideAccumulators& acc,
                                          int line,
                                          const uint8_t* place,
                                          uint32_t thread,
                                          const float (&own)[2],
                                          const float (&other)[2]) {
  const float2 inverse =
      *reinterpret_cast<const float2*>(place + kPairScales + (line * kGroupThreads + thread) * 8);
  const float factor[2] = {other[0] * inverse.x, other[1] * inverse.y};
#pragma unroll
  for (int chunk = line * kLineChunks; chunk < (line + 1) * kLineChunks; ++chunk) {
    const uint4 words =
        *reinterpret_cast<const uint4*>(place + (chunk * kGroupThreads + thread) * 16);
    const uint32_t word[4] = {words.x, words.y, words.z, words.w};
    float* to = acc + 8 * chunk;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 values = ptx::unpack_f16(word[i]);
      to[2 * i] = __fmaf_rn(values.x, factor[i % 2], to[2 * i] * own[i % 2]);
      to[2 * i + 1] = __fmaf_rn(values.y, factor[i % 2], to[2 * i + 1] * own[i % 2]);
    }
  }
}

/// Turns the rope dims of the thread's pairs back. They round to bf16 before.
__device__ __forceinline__ void turn_back(WideAccumulators& acc, const float2* turns) {
  const int c = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const int j = 2 * (k % 2) + c / 2;
    const float2 turn = turns[16 * (k / 4) + 4 * j + 2 * (k / 2 % 2) + c % 2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float* pair = acc + 4 * (24 + k) + 2 * h;
      pair[0] = to_bf16(pair[0]);
      pair[1] = to_bf16(pair[1]);
      rotate_pair(pair[0], pair[1], make_float2(turn.x, -turn.y));
    }
  }
}

/// Stores the thread's places of a line, sixteen bytes at a time.
__device__ __forceinline__ void store_line(const SparseAttentionParams& params,
                                           const WideAccumulators& acc,
                                           int line,
                                           int64_t first_row,
                                           int group) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int c = lane % 4;
  const bool is_odd = c % 2 != 0;
  const int64_t row = first_row + static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
  uint16_t* to = params.o + row * kKvDims + group * (kKvDims / kOutputGroups);
  const bool is_rope = line == 3 && group == kOutputGroups - 1;
  // Two words of the even lane and two of the odd one become four, in the order of dims.
  const uint32_t low = is_rope ? (is_odd ? 0x7654U : 0x3210U) : (is_odd ? 0x1054U : 0x5410U);
  const uint32_t high = is_rope ? (is_odd ? 0x3210U : 0x7654U) : (is_odd ? 0x3276U : 0x7632U);
#pragma unroll
  for (int jj = 0; jj < 2; ++jj) {
    const int dim = 64 * line + (is_rope ? 32 * (c % 2) + 8 * (2 * jj + c / 2)
                                         : 16 * (2 * jj + c / 2) + 8 * (c % 2));
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t word[4];
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const float* pair = acc + 4 * (8 * line + 2 * t + jj) + 2 * h;
        word[t] = ptx::pack_bf16(pair[0], pair[1]);
      }
      uint32_t mine[2];
      uint32_t theirs[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        mine[i] = is_odd ? word[2 + i] : word[i];
        theirs[i] = __shfl_xor_sync(kWholeWarp, is_odd ? word[i] : word[2 + i], 1);
      }
      *reinterpret_cast<uint4*>(to + h * 8 * kKvDims + dim) =
          make_uint4(__byte_perm(mine[0], theirs[0], low),
                     __byte_perm(mine[0], theirs[0], high),
                     __byte_perm(mine[1], theirs[1], low),
                     __byte_perm(mine[1], theirs[1], high));
    }
  }
}

/// Stores the thread's places of a line to the workspace, where clusters meet.
__device__ __forceinline__ void leave_line(const SparseAttentionParams& params,
                                           const JoinWorkspace& workspace,
                                           const WideAccumulators& acc,
                                           int line,
                                           int64_t place,
                                           int group) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int head = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
  float* to =
      workspace.outputs +
      ((place * params.plan.clusters + static_cast<int32_t>(ptx::cluster_index())) * kWideHeads +
       head) *
          kKvDims +
      group * (kKvDims / kOutputGroups) + 2 * (lane % 4);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float* pair = acc + 4 * (8 * line + j) + 2 * h;
      *reinterpret_cast<float2*>(to + 8 * h * kKvDims + 64 * line + 8 * j) =
          make_float2(pair[0], pair[1]);
    }
  }
}

/// Output groups, at their end.
__device__ __forceinline__ void finish_wide_block(const SparseAttentionParams& params,
                                                  const AttentionShared<kWideHeads>& shared,
                                                  WideAccumulators& acc,
                                                  int32_t tiles,
                                                  int32_t query,
                                                  int32_t head_group,
                                                  int group) {
  AttentionStats<kWideHeads>& stats = shared.stats();
  const bool is_pair = params.plan.cluster == 2;
  const bool is_last = params.plan.clusters == 1;
  const int rank = is_pair ? static_cast<int>(ptx::cluster_rank()) : 0;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int64_t place = static_cast<int64_t>(query) * (params.heads / kWideHeads) + head_group;
  // Dims are shared out by groups; where clusters meet, heads, as the join there has it.
  const int owner = is_last ? group : warp / 2;
  const uint32_t slot = is_last ? threadIdx.x % kGroupThreads
                                : static_cast<uint32_t>(group) * (kGroupThreads / 2) +
                                      threadIdx.x % (kGroupThreads / 2);
  if (is_pair && owner != rank) {
    send_to_pair(shared, acc, slot);
    ptx::named_barrier_arrive(kTotalsBarrier, kGroupThreads + kOutputThreads);
  } else {
    ptx::named_barrier_sync(kTotalsBarrier, kGroupThreads + kOutputThreads);
    const int head = warp * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
    const float own[2] = {stats.part_factors[rank][head], stats.part_factors[rank][head + 8]};
    const float other[2] = {stats.part_factors[rank ^ 1][head],
                            stats.part_factors[rank ^ 1][head + 8]};
#pragma unroll
    for (int line = 0; line < kPairLines; ++line) {  // each as soon as it is there
      if (is_pair) {
        ptx::barrier_wait_cluster_or_leave(&stats.lines_came[line], 0);
        join_line(acc, line, shared.base + spare_buffer(tiles) * kTileBytes, slot, own, other);
      } else {
        float* to = acc + 32 * line;
#pragma unroll
        for (int i = 0; i < 32; ++i) {
          to[i] = __fmaf_rn(to[i], own[i / 2 % 2], 0.0F);  // +0 where narrower blocks have it
        }
      }
      if (is_last) {
        if (line == kPairLines - 1 && group == kOutputGroups - 1 && params.positions != nullptr) {
          turn_back(acc, stats.turns);
        }
        store_line(params, acc, line, place * kWideHeads, group);
      } else {
        leave_line(params, join_workspace(params), acc, line, place, group);
      }
    }
  }
  if (!is_last) {
    join_clusters<kWideHeads>(params,
                              shared,
                              join_workspace(params),
                              place,
                              place * kWideHeads,
                              rank,
                              static_cast<int>(ptx::cluster_index()),
                              slice_begin<kWideHeads>(rank, stats.slice),
                              slice_begin<kWideHeads>(rank + 1, stats.slice));
  }
}

}  // namespace baleen::kernels
