#pragma once
// End of a block of 64 heads whose cluster holds all rows of its query: the output goes from the
// accumulators to memory, joined with that of the other block of a cluster of two. Each block owns
// the dims of the output group of its rank: a thread of the other group sends what it holds
// straight to the thread of the other block that holds the same places, as FP16 under a power of
// two of its own per head (an error below 2^-12 of the part, where the output is rounded by 2^-9),
// which halves what crosses between multiprocessors. The score group, which has nothing else to do,
// exchanges maxima and sums and computes the factors meanwhile.
//
//   publish_direct_factors(params, shared, even, odd, query, head_group);   // score group
//   finish_direct(params, shared, acc, query, head_group, group);           // output groups
//
// A thread's places of a line (wide_tile.cuh) are pairs; with those of its neighbour they make
// eight dims that follow each other.

#include <cstdint>

#include "kernels/cache_entry/row_math.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/convert.cuh"
#include "kernels/ptx/exp2.cuh"
#include "kernels/ptx/half_pair.cuh"
#include "kernels/ptx/push_to_peer.cuh"
#include "kernels/ptx/remote_arrive.cuh"
#include "kernels/ptx/role_registers.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/sparse_attention/attention_join.cuh"
#include "kernels/sparse_attention/wide_tile.cuh"

namespace baleen::kernels {

using WideAccumulators = float[2][64];

inline constexpr int kPairChunks = 16;  // of 16 bytes that a thread sends, beside its two scales
inline constexpr uint32_t kPairBytes = kGroupThreads * (kPairChunks * 16 + 8);
static_assert(kPairBytes <= kTileBytes);

/// Whether the cluster holds all rows of its query.
__device__ __forceinline__ bool joins_directly(const SparseAttentionPlan& plan) {
  return plan.clusters == 1;
}

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
__device__ __forceinline__ void publish_direct_factors(const SparseAttentionParams& params,
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
    const float factor =
        finish_head(params, row + 8 * h, h == 0 ? sink[0] : sink[1], top, total, rank == 0);
    stats.part_factors[0][head + 8 * h] = of_first * factor;
    stats.part_factors[1][head + 8 * h] = of_second * factor;
  }
}

/// Sends a group's accumulators to the same threads of the other block.
__device__ __forceinline__ void send_to_pair(const AttentionShared<kWideHeads>& shared,
                                             const WideAccumulators& acc) {
  AttentionStats<kWideHeads>& stats = shared.stats();
  const uint32_t peer = ptx::cluster_rank() ^ 1U;
  const uint32_t thread = threadIdx.x % kGroupThreads;
  const uint32_t place =
      ptx::peer_address(shared.base + stats.peer_spare * kTileBytes + thread * 16, peer);
  const uint32_t came = ptx::peer_address(&stats.received, peer);
  float scale[2];
  uint32_t inverse[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float most = 0;
#pragma unroll
    for (int i = 0; i < 64; i += 4) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        most = fmaxf(most, fmaxf(fabsf(acc[half][i + 2 * h]), fabsf(acc[half][i + 2 * h + 1])));
      }
    }
    // Its power of two goes to 2^14; not above 2^125, whose inverse is still a normal number.
    const uint32_t power = max(__float_as_uint(most) & 0x7F800000U, 16U << 23);
    scale[h] = __uint_as_float((268U << 23) - power);
    inverse[h] = power - (14U << 23);
  }
  ptx::barrier_wait_cluster_or_leave(&stats.may_send, 0);
#pragma unroll
  for (int chunk = 0; chunk < kPairChunks; ++chunk) {
    const int half = chunk / 8;
    const int i = chunk % 8 * 8;
    float4 words;
    words.x = __uint_as_float(ptx::pack_half(acc[half][i] * scale[0], acc[half][i + 1] * scale[0]));
    words.y =
        __uint_as_float(ptx::pack_half(acc[half][i + 2] * scale[1], acc[half][i + 3] * scale[1]));
    words.z =
        __uint_as_float(ptx::pack_half(acc[half][i + 4] * scale[0], acc[half][i + 5] * scale[0]));
    words.w =
        __uint_as_float(ptx::pack_half(acc[half][i + 6] * scale[1], acc[half][i + 7] * scale[1]));
    ptx::push_float4(place + chunk * kGroupThreads * 16, words, came);
  }
  ptx::store_async_8(place + kPairChunks * kGroupThreads * 16 - thread * 8,
                     static_cast<uint64_t>(inverse[0]) | (static_cast<uint64_t>(inverse[1]) << 32),
                     came);
}

/// Multiplies with the factors and adds what the other block sent.
__device__ __forceinline__ void join_pair(const AttentionShared<kWideHeads>& shared,
                                          WideAccumulators& acc,
                                          int32_t tiles,
                                          const float (&own)[2],
                                          const float (&other)[2]) {
  AttentionStats<kWideHeads>& stats = shared.stats();
  const uint32_t thread = threadIdx.x % kGroupThreads;
  const uint8_t* place = shared.base + spare_buffer(tiles) * kTileBytes + thread * 16;
  ptx::barrier_wait_cluster_or_leave(&stats.received, 0);
  const auto inverse =
      *reinterpret_cast<const float2*>(place + kPairChunks * kGroupThreads * 16 - thread * 8);
  const float factor[2] = {other[0] * inverse.x, other[1] * inverse.y};
#pragma unroll
  for (int chunk = 0; chunk < kPairChunks; ++chunk) {
    const auto words = *reinterpret_cast<const uint4*>(place + chunk * kGroupThreads * 16);
    const uint32_t word[4] = {words.x, words.y, words.z, words.w};
    float* to = acc[chunk / 8] + chunk % 8 * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 values = ptx::unpack_half(word[i]);
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
      float* pair = acc[1] + 4 * (8 + k) + 2 * h;
      pair[0] = to_bf16(pair[0]);
      pair[1] = to_bf16(pair[1]);
      rotate_pair(pair[0], pair[1], make_float2(turn.x, -turn.y));
    }
  }
}

/// Stores the thread's places of all four lines of its group, sixteen bytes at a time.
__device__ __forceinline__ void store_lines(const SparseAttentionParams& params,
                                            const WideAccumulators& acc,
                                            int64_t first_row,
                                            int group) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int c = lane % 4;
  const bool is_odd = c % 2 != 0;
  const int64_t row = first_row + static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
  uint16_t* to = params.o + row * kKvDims + group * (kKvDims / kOutputGroups);
#pragma unroll
  for (int line = 0; line < 4; ++line) {
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
          const float* pair = acc[line / 2] + 4 * (line % 2 * 8 + 2 * t + jj) + 2 * h;
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
}

__device__ __forceinline__ void finish_direct(const SparseAttentionParams& params,
                                              const AttentionShared<kWideHeads>& shared,
                                              WideAccumulators& acc,
                                              int32_t tiles,
                                              int32_t query,
                                              int32_t head_group,
                                              int group) {
  AttentionStats<kWideHeads>& stats = shared.stats();
  const bool is_pair = params.plan.cluster == 2;
  const int rank = is_pair ? static_cast<int>(ptx::cluster_rank()) : 0;
  if (is_pair && group != rank) {
    send_to_pair(shared, acc);
    ptx::named_barrier_arrive(kTotalsBarrier, kGroupThreads + kOutputThreads);
    return;
  }
  ptx::named_barrier_sync(kTotalsBarrier, kGroupThreads + kOutputThreads);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int head = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
  const float own[2] = {stats.part_factors[rank][head], stats.part_factors[rank][head + 8]};
  if (is_pair) {
    const float other[2] = {stats.part_factors[rank ^ 1][head],
                            stats.part_factors[rank ^ 1][head + 8]};
    join_pair(shared, acc, tiles, own, other);
  } else {
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      acc[0][i] = __fmaf_rn(acc[0][i], own[i / 2 % 2], 0.0F);  // +0 where narrower blocks have it
      acc[1][i] = __fmaf_rn(acc[1][i], own[i / 2 % 2], 0.0F);
    }
  }
  if (params.positions != nullptr && group == kOutputGroups - 1) {
    turn_back(acc, stats.turns);
  }
  const int64_t first_row =
      (static_cast<int64_t>(query) * (params.heads / kWideHeads) + head_group) * kWideHeads;
  store_lines(params, acc, first_row, group);
}

}  // namespace baleen::kernels
