#pragma once
// What the threads of a block and the blocks of a cluster tell each other about a row: places in
// shared memory, and the reductions over them.
//
//   const uint32_t top = max_of(shared.board.top, blocks);

#include <cstdint>

#include "kernels/indexer_topk/score_key.cuh"
#include "kernels/indexer_topk/threshold_bin.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/push_to_peer.cuh"

namespace baleen::kernels {

inline constexpr uint32_t kMaxCluster = 16;
inline constexpr uint32_t kSampleGroup = 4;  // words
inline constexpr uint32_t kMaxLevels = 5;    // quotas of k / blocks, 2 k / blocks, ... k
inline constexpr uint32_t kBoundWarps =
    22;  // warps whose n-th best enters the bound; see lower_bound
// Of a streamed row fewer: its warps hold whole words of the sample, so that in rising and falling
// rows every further warp means 256 more candidates, all in one block, whose list has to hold them.
inline constexpr uint32_t kStreamedBoundWarps = 14;

/// What blocks of a cluster tell each other; slot r of every array is written by block r.
struct ClusterBoard {
  uint32_t floor[kMaxCluster];
  uint32_t top[kMaxCluster];
  uint32_t kept[kMaxCluster];
  uint32_t low[kMaxCluster];
  uint32_t high[kMaxCluster];
  alignas(16) uint32_t level[kMaxLevels][32];  // places beyond the cluster hold kAbsentKey
};

/// The usual way's messages between blocks are stores that count at the receiver: no fence, no
/// cluster barrier, which cost more than half a microsecond each. One phase each.
struct RowMessages {
  ptx::Barrier bounds;  // every block's floor and top
  ptx::Barrier counts;  // every block's number of candidates
  ptx::Barrier list;    // the candidates, in the first block

  /// One thread, before the blocks of the cluster meet.
  __device__ __forceinline__ void init(uint32_t blocks) {
    ptx::barrier_init(&bounds, 1);
    ptx::barrier_init(&counts, 1);
    ptx::barrier_init(&list, blocks);
    ptx::fence_barrier_init();
    ptx::barrier_expect_bytes(&bounds, 8 * blocks);
    ptx::barrier_expect_bytes(&counts, 4 * blocks);
  }
};

/// A word into the same place of block `rank`, counted on its barrier `told` (peer_address).
__device__ __forceinline__ void push_word(const uint32_t* place,
                                          uint32_t rank,
                                          uint32_t word,
                                          uint32_t told) {
  ptx::push_float(ptx::peer_address(place, rank), __uint_as_float(word), told);
}

struct RowShared {
  ClusterBoard board;
  RowMessages messages;
  BinScratch bins;
  alignas(16) uint32_t warp_low[kTopkWarps];
  uint32_t warp_high[kTopkWarps];
  alignas(16) uint32_t warp_level[kMaxLevels][kTopkWarps];
  uint32_t kept;  // candidates of this block
  uint32_t small;
  uint32_t top;  // largest key this block has seen of a streamed row
};

/// Reductions over the `count` <= 32 values of a board row, by every warp for itself.
__device__ __forceinline__ uint32_t min_of(const uint32_t* values, uint32_t count) {
  const uint32_t lane = threadIdx.x % 32;
  return __reduce_min_sync(kFullMask, lane < count ? values[lane] : 0xFFFFFFFFU);
}

__device__ __forceinline__ uint32_t max_of(const uint32_t* values, uint32_t count) {
  const uint32_t lane = threadIdx.x % 32;
  return __reduce_max_sync(kFullMask, lane < count ? values[lane] : 0U);
}

__device__ __forceinline__ uint32_t sum_of(const uint32_t* values, uint32_t count) {
  const uint32_t lane = threadIdx.x % 32;
  return __reduce_add_sync(kFullMask, lane < count ? values[lane] : 0U);
}

/// Sorts the lanes' keys, largest in lane 0.
__device__ __forceinline__ uint32_t warp_sorted(uint32_t key) {
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t size = 2; size <= 32; size *= 2) {
#pragma unroll
    for (uint32_t step = size / 2; step > 0; step /= 2) {
      const uint32_t other = __shfl_xor_sync(kFullMask, key, step);
      const bool keep_larger = ((lane & step) == 0) == ((lane & size) == 0);
      key = keep_larger ? max(key, other) : min(key, other);
    }
  }
  return key;
}

/// The n-th largest (n in 1..32) of the lanes' keys, equal keys counted apart.
__device__ __forceinline__ uint32_t warp_nth_largest(uint32_t key, uint32_t n) {
  const uint32_t lane = threadIdx.x % 32;
  if (n <= 4) {
    uint32_t best = __reduce_max_sync(kFullMask, key);
    for (uint32_t i = 1; i < n; ++i) {
      const uint32_t holders = __ballot_sync(kFullMask, key == best);
      key = lane == static_cast<uint32_t>(__ffs(static_cast<int>(holders)) - 1) ? 0U : key;
      best = __reduce_max_sync(kFullMask, key);
    }
    return best;
  }
  return __shfl_sync(kFullMask, warp_sorted(key), static_cast<int>(n - 1));
}

/// The n-th largest of 32 keys in shared memory, by counting: quicker for one warp alone.
__device__ __forceinline__ uint32_t nth_largest_of_32(const uint32_t* keys, uint32_t n) {
  const uint32_t mine = keys[threadIdx.x % 32];
  uint32_t larger = 0;
  uint32_t not_smaller = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint4 four = reinterpret_cast<const uint4*>(keys)[i];
    larger += (four.x > mine) + (four.y > mine) + (four.z > mine) + (four.w > mine);
    not_smaller += (four.x >= mine) + (four.y >= mine) + (four.z >= mine) + (four.w >= mine);
  }
  const uint32_t holders = __ballot_sync(kFullMask, larger < n && n <= not_smaller);
  return __shfl_sync(kFullMask, mine, __ffs(static_cast<int>(holders)) - 1);
}

}  // namespace baleen::kernels
