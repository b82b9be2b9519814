#pragma once
// The output groups of the attention kernel: bring q into shared memory, accumulate O^T[512, heads]
// = rows^T * weights^T over the tiles, each group 256 dims.
//
//   prepare_output<kHeads>(params, shared, query, head_begin);
//   accumulate_tiles<kHeads>(shared, tiles, group);   // leaves shared.partial()

#include <cstdint>

#include "kernels/cache_entry/row_math.cuh"
#include "kernels/ptx/role_registers.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/sparse_attention/attention_tile.cuh"
#include "kernels/sparse_attention/row_expand.cuh"

namespace baleen::kernels {

/// Four-byte word `pair` (0: dims for the lower half of k, 1: upper) of group `t`, four dims from
/// `place` of a block in the order the score operand has them.
__device__ __forceinline__ void store_query_chunk(
    uint8_t* block, int head, int chunk, bool is_rope, uint4 dims) {
  // Eight dims from 8 * chunk of the block. Nope: 16 j + 8 (chunk % 2), groups t = 2 (chunk % 2)
  // and
  // + 1, dims (0, 2) and (1, 3) of four in the lower and upper half of k. Rope: dims 8 j of half
  // chunk / 4, groups t = 2 (chunk / 4) and + 1, dims (0, 1) and (2, 3).
  const int j = is_rope ? chunk % 4 : chunk / 2;
  const int t = is_rope ? chunk / 4 * 2 : chunk % 2 * 2;
  const uint32_t word[4] = {dims.x, dims.y, dims.z, dims.w};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t a = word[2 * i];
    const uint32_t b = word[2 * i + 1];
    const uint32_t lower = is_rope ? a : __byte_perm(a, b, 0x5410);
    const uint32_t upper = is_rope ? b : __byte_perm(a, b, 0x7632);
    const uint32_t row = static_cast<uint32_t>(head);
    const uint32_t byte = static_cast<uint32_t>(32 * (t + i) + 4 * j);
    *reinterpret_cast<uint32_t*>(block + ptx::swizzled_128(row, byte)) = lower;
    *reinterpret_cast<uint32_t*>(block + ptx::swizzled_128(row, byte + 16)) = upper;
  }
}

/// The same for blocks of 64 heads, whose lines are in another order (wide_tile.cuh).
__device__ __forceinline__ void store_wide_query_chunk(
    uint8_t* block, int head, int chunk, bool is_rope, uint4 dims) {
  const int j = is_rope ? chunk % 4 : chunk / 2;
  const int t = is_rope ? chunk / 4 * 2 : chunk % 2 * 2;
  const uint32_t word[4] = {dims.x, dims.y, dims.z, dims.w};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t a = word[2 * i];
    const uint32_t b = word[2 * i + 1];
    const uint2 quad = is_rope ? make_uint2(a, b)
                               : make_uint2(__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632));
    const auto byte = static_cast<uint32_t>(32 * (t + i) + 8 * j);
    *reinterpret_cast<uint2*>(block + ptx::swizzled_128(static_cast<uint32_t>(head), byte)) = quad;
  }
}

/// This thread's share of q: all loads are under way before the first is used.
template <int kHeads>
class QueryLoader {
 public:
  __device__ QueryLoader(const SparseAttentionParams& params, int32_t query, int32_t head_begin) {
    const uint16_t* q =
        params.q + (static_cast<int64_t>(query) * params.heads + head_begin) * kKvDims;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      dims_[round] = __ldg(reinterpret_cast<const uint4*>(q + head(round) * kKvDims +
                                                          block(round) * 64 + chunk() * 8));
    }
  }
  __device__ void store(const AttentionShared<kHeads>& shared) const {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const auto store_chunk = kHeads == 64 ? store_wide_query_chunk : store_query_chunk;
      store_chunk(shared.q_block(block(round)),
                  head(round),
                  chunk(),
                  block(round) == kDimBlocks - 1,
                  dims_[round]);
    }
    ptx::fence_async_shared();
    ptx::barrier_arrive(&shared.stats().q_ready);
  }

 private:
  // A warp takes the eight chunks of a block of 64 dims for four heads: whole lines of memory, and
  // stores without bank conflicts.
  static constexpr int kFirstBlock = AttentionShape<kHeads>::kHeldBlocks;
  static constexpr int kRounds = kHeads * 8 * (kDimBlocks - kFirstBlock) / kOutputThreads;
  static __device__ int thread() { return output_thread<kHeads>(); }
  static __device__ int chunk() { return thread() % 8; }
  static __device__ int head(int round) {
    return (round * (kOutputThreads / 8) + thread() / 8) % kHeads;
  }
  static __device__ int block(int round) {
    return kFirstBlock + (round * (kOutputThreads / 8) + thread() / 8) / kHeads;
  }

  uint4 dims_[kRounds];
};

/// Sinks and the rotation of the output; `thread` of those that share this out.
template <int kHeads>
__device__ __forceinline__ void prepare_stores(const SparseAttentionParams& params,
                                               const AttentionShared<kHeads>& shared,
                                               int32_t query,
                                               int32_t head_begin,
                                               int thread) {
  AttentionStats<kHeads>& stats = shared.stats();
  // The factors of 64 heads that meet nobody are computed elsewhere (wide_join.cuh).
  if (thread < kHeads && (kHeads < 64 || params.plan.clusters > 1)) {
    stats.sinks[thread] = params.sink != nullptr ? __ldg(params.sink + head_begin + thread)
                                                 : __int_as_float(0xFF800000);  // -inf
  }
  if (params.positions != nullptr && thread < kRopePairs) {
    stats.turns[thread] = rotation(params.positions[query], params.frequencies[thread]);
  }
}

/// What the output groups bring along: q, sinks and the rotation of the output.
template <int kHeads>
__device__ __forceinline__ void prepare_output(const SparseAttentionParams& params,
                                               const AttentionShared<kHeads>& shared,
                                               int32_t query,
                                               int32_t head_begin) {
  const QueryLoader<kHeads> q(params, query, head_begin);
  q.store(shared);
  prepare_stores<kHeads>(params, shared, query, head_begin, output_thread<kHeads>());
}

template <int kHeads>
__device__ __forceinline__ void accumulate_tiles(const AttentionShared<kHeads>& shared,
                                                 int32_t tiles,
                                                 int group) {
  constexpr int kBuffers = AttentionShape<kHeads>::kBuffers;
  constexpr int kBlocks = kDimBlocks / kOutputGroups;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  AttentionStats<kHeads>& stats = shared.stats();
  float acc[kBlocks][kHeads / 2];
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
    for (int i = 0; i < kHeads / 2; ++i) {
      acc[m][i] = 0;
    }
  }
  for (int32_t index = 0; index < tiles; ++index) {
    const int buffer = index % kBuffers;
    ptx::barrier_wait_or_leave(&stats.full[buffer], (index / kBuffers) & 1);
    if (index > 0 && stats.changed[index % kStatSlots] != 0) {
      const float* factor = stats.factor[index % kStatSlots];
#pragma unroll
      for (int c = 0; c < kHeads / 8; ++c) {
        const float2 pair = *reinterpret_cast<const float2*>(factor + 8 * c + 2 * (lane % 4));
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) {
          acc[m][4 * c] *= pair.x;
          acc[m][4 * c + 1] *= pair.y;
          acc[m][4 * c + 2] *= pair.x;
          acc[m][4 * c + 3] *= pair.y;
        }
      }
    }
    // Both operands' atoms lie 1,024 bytes apart; of a descriptor only the low word changes.
    const uint64_t high = ptx::make_descriptor(0, 0, 1024, ptx::Swizzle::k128);
    // From lane 0, so that the compiler knows them to be the same in all lanes of the warp.
    const uint32_t rows = __shfl_sync(
        0xFFFFFFFFU,
        (ptx::shared_address(shared.unit(buffer, 0)) + group * kBlocks * kBlockBytes) >> 4,
        0);
    const uint32_t weights =
        __shfl_sync(0xFFFFFFFFU, ptx::shared_address(shared.weights(buffer)) >> 4, 0);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        ptx::Wgmma<ptx::Bf16, kHeads>::template shared<1, 0>(
            acc[m],
            high | (rows + (k * kUnitBytes + m * kBlockBytes) / 16),
            high | (weights + 32 * k / 16),
            1);
      }
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      ptx::pin_registers(acc[m]);
    }
    if (lane == 0) {
      ptx::barrier_arrive(&stats.freed[buffer]);
    }
  }
  // Totals are there, and nobody reads tiles or weights any more.
  ptx::named_barrier_sync(kTotalsBarrier,
                          AttentionShape<kHeads>::kFirstOutputThread + kOutputThreads);
  float* partial = shared.partial();
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
    const int block = group * kBlocks + m;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int place = 16 * warp + lane / 4 + 8 * half;
      const int dim = block * 64 + (block < kKvScales ? nope_dim_at(place) : place);
#pragma unroll
      for (int c = 0; c < kHeads / 8; ++c) {
        float* at =
            partial + (8 * c + 2 * (lane % 4)) * AttentionShape<kHeads>::kPartialStride + dim;
        at[0] = acc[m][4 * c + 2 * half];
        at[AttentionShape<kHeads>::kPartialStride] = acc[m][4 * c + 2 * half + 1];
      }
    }
  }
}

}  // namespace baleen::kernels
