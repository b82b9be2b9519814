#pragma once
// One row of scores spread over the registers of a cluster, and the passes over it that need all
// blocks: a lower bound of the k-th best, and an exact cut when too many scores crowd at it.
// Words of 32 entries go round the blocks, so that a run of good neighbours is shared by all.
//
//   RegisterRow<8> row(scores, length, rank, blocks);
//   uint32_t floor = row.lower_bound(k, shared, &top);     // at least k scores reach `floor`

#include <cstdint>

#include "kernels/indexer_topk/score_key.cuh"
#include "kernels/indexer_topk/threshold_bin.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace baleen::kernels {

inline constexpr uint32_t kMaxCluster = 16;
inline constexpr uint32_t kBoundWarps =
    22;  // warps whose n-th best enters the bound; see lower_bound

/// What blocks of a cluster tell each other; slot r of every array is written by block r.
struct ClusterBoard {
  uint32_t floor[kMaxCluster];
  uint32_t top[kMaxCluster];
  uint32_t kept[kMaxCluster];
  uint32_t low[kMaxCluster];
  uint32_t high[kMaxCluster];
};

struct RowShared {
  ClusterBoard board;
  BinScratch bins;
  uint32_t warp_low[kTopkWarps];
  uint32_t warp_high[kTopkWarps];
  uint32_t kept;  // candidates of this block
  uint32_t small;
};

__device__ __forceinline__ uint32_t min_of(const uint32_t* values, uint32_t count) {
  uint32_t best = values[0];
  for (uint32_t i = 1; i < count; ++i) {
    best = min(best, values[i]);
  }
  return best;
}

__device__ __forceinline__ uint32_t max_of(const uint32_t* values, uint32_t count) {
  uint32_t best = values[0];
  for (uint32_t i = 1; i < count; ++i) {
    best = max(best, values[i]);
  }
  return best;
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
#pragma unroll
  for (uint32_t size = 2; size <= 32; size *= 2) {  // bitonic sort, descending
#pragma unroll
    for (uint32_t step = size / 2; step > 0; step /= 2) {
      const uint32_t other = __shfl_xor_sync(kFullMask, key, step);
      const bool keep_larger = ((lane & step) == 0) == ((lane & size) == 0);
      key = keep_larger ? max(key, other) : min(key, other);
    }
  }
  return __shfl_sync(kFullMask, key, static_cast<int>(n - 1));
}

/// The same by counting, quicker for one warp alone.
__device__ __forceinline__ uint32_t lone_warp_nth_largest(uint32_t key, uint32_t n) {
  const uint32_t lane = threadIdx.x % 32;
  uint32_t better = 0;
#pragma unroll
  for (uint32_t i = 0; i < 32; ++i) {
    const uint32_t other = __shfl_sync(kFullMask, key, static_cast<int>(i));
    better += (other > key || (other == key && i < lane)) ? 1U : 0U;
  }
  const uint32_t holder = __ballot_sync(kFullMask, better == n - 1);
  return __shfl_sync(kFullMask, key, __ffs(static_cast<int>(holder)) - 1);
}

template <int kVectors>
class RegisterRow {
 public:
  __device__ RegisterRow(const float* scores, uint32_t length, uint32_t rank, uint32_t blocks)
      : length_(length), rank_(rank), blocks_(blocks) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const uint32_t entry = first_entry(v);
      const float none = __int_as_float(0x7FFFFFFF);
      float4 four = make_float4(none, none, none, none);
      if (entry + 4 <= length) {
        four = __ldcg(reinterpret_cast<const float4*>(scores + entry));
      } else if (entry < length) {  // reads nothing beyond the length
        four.x = __ldcg(scores + entry);
        four.y = entry + 1 < length ? __ldcg(scores + entry + 1) : none;
        four.z = entry + 2 < length ? __ldcg(scores + entry + 2) : none;
      }
      values_[4 * v] = four.x;
      values_[4 * v + 1] = four.y;
      values_[4 * v + 2] = four.z;
      values_[4 * v + 3] = four.w;
    }
  }

  /// Entry of element 0 of vector v; its four elements are neighbours.
  __device__ __forceinline__ uint32_t first_entry(int v) const {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t word = (static_cast<uint32_t>(v) * 4 + lane / 8) * kTopkWarps + threadIdx.x / 32;
    return (word * blocks_ + rank_) * 32 + (lane % 8) * 4;
  }

  /// A key that at least k entries of the row reach, and the row's largest key; the same in every
  /// block. Uses that the n-th best of thread maxima is reached by n different entries: each block
  /// owes q = k / blocks of them, taken as the n-th best of some warps. Contains a cluster barrier;
  /// the caller has waited for all blocks to start.
  __device__ uint32_t lower_bound(uint32_t k, RowShared& shared, uint32_t* top) const {
    float best = __int_as_float(0x7FFFFFFF);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      best = fmaxf(best, largest(v));  // NaN only when all are
    }
    const uint32_t key = score_key(best);
    const uint32_t quota = (k + blocks_ - 1) / blocks_;
    const uint32_t warps = min(quota, kBoundWarps);
    const uint32_t nth = (quota + warps - 1) / warps;
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t bound = nth > 32 ? kNanKey : warp_nth_largest(key, nth);
    const uint32_t warp_top = __reduce_max_sync(kFullMask, key);
    if (lane == 0) {
      shared.warp_low[warp] = bound;
      shared.warp_high[warp] = warp_top;
    }
    __syncthreads();
    if (warp == 0) {
      const uint32_t floor = lone_warp_nth_largest(shared.warp_low[lane], (quota + nth - 1) / nth);
      const uint32_t block_top = __reduce_max_sync(kFullMask, shared.warp_high[lane]);
      if (lane < blocks_) {
        *ptx::peer_pointer(&shared.board.floor[rank_], lane) = floor;
        *ptx::peer_pointer(&shared.board.top[rank_], lane) = block_top;
      }
    }
    ptx::cluster_sync();
    *top = max_of(shared.board.top, blocks_);
    return max(kNanKey, min_of(shared.board.floor, blocks_));
  }

  /// Puts this block's entries that `cut` keeps into `list` (in any block's shared memory), in no
  /// order, at most `capacity`; shared.kept (zero before) counts all of them.
  __device__ void push(const Cut& cut, uint64_t* list, uint32_t capacity, RowShared& shared) {
    ptx::pin_registers(values_);  // keys are made again where needed, not kept
    const bool with_nan = cut.key <= kNanKey;
    const float floor = key_score(cut.key);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (with_nan || largest(v) >= floor) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const uint32_t entry = first_entry(v) + static_cast<uint32_t>(e);
          const uint32_t key = score_key(values_[4 * v + e]);
          if (entry < length_ && cut.keeps(key, entry)) {
            const uint32_t place = atomicAdd(&shared.kept, 1U);
            if (place < capacity) {
              list[place] = ranked(key, entry);
            }
          }
        }
      }
    }
  }

  /// A cut that keeps the k best and at most `capacity` in all (capacity >= k + 64), found digit by
  /// digit over the whole cluster. `histogram` has kBins places in every block. For rows whose
  /// scores crowd at the threshold, so every level starts from the spread of what is left.
  __device__ Cut refine(uint32_t floor,
                        uint32_t top,
                        uint32_t k,
                        uint32_t capacity,
                        RowShared& shared,
                        uint32_t* histogram) {
    uint32_t low = floor;
    uint32_t high = top;
    uint32_t need = k;
    while (true) {
      narrow(&low, &high, shared);
      if (low == high) {
        break;
      }
      const uint32_t shift = bin_shift(high - low);
      const BinSearch found =
          search(need, shared, histogram, [&](uint32_t key, uint32_t, auto add) {
            if (key >= low && key <= high) {
              add((key - low) >> shift);
            }
          });
      need -= found.above;
      low += found.bin << shift;
      high = min(high, low + ((1U << shift) - 1));
      if (k - need + found.count <= capacity) {
        return {low, kNoLimit};
      }
    }
    const uint32_t shift = bin_shift(length_ - 1);
    const BinSearch found =
        search(need, shared, histogram, [&](uint32_t key, uint32_t entry, auto add) {
          if (key == low) {
            add(kBins - 1 - (entry >> shift));
          }
        });
    return {low, (kBins - found.bin) << shift};
  }

 private:
  __device__ __forceinline__ float largest(int v) const {
    return fmaxf(fmaxf(values_[4 * v], values_[4 * v + 1]),
                 fmaxf(values_[4 * v + 2], values_[4 * v + 3]));
  }

  template <class Visit>
  __device__ __forceinline__ void for_each(Visit visit) {
    ptx::pin_registers(values_);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const uint32_t entry = first_entry(v) + static_cast<uint32_t>(e);
        if (entry < length_) {
          visit(score_key(values_[4 * v + e]), entry);
        }
      }
    }
  }

  /// Shrinks [low, high] to the keys the row has in it (at least one).
  __device__ void narrow(uint32_t* low, uint32_t* high, RowShared& shared) {
    uint32_t least = 0xFFFFFFFFU;
    uint32_t most = 0;
    for_each([&](uint32_t key, uint32_t) {
      if (key >= *low && key <= *high) {
        least = min(least, key);
        most = max(most, key);
      }
    });
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t warp = threadIdx.x / 32;
    least = __reduce_min_sync(kFullMask, least);
    most = __reduce_max_sync(kFullMask, most);
    if (lane == 0) {
      shared.warp_low[warp] = least;
      shared.warp_high[warp] = most;
    }
    __syncthreads();
    if (warp == 0) {
      const uint32_t block_least = __reduce_min_sync(kFullMask, shared.warp_low[lane]);
      const uint32_t block_most = __reduce_max_sync(kFullMask, shared.warp_high[lane]);
      if (lane < blocks_) {
        *ptx::peer_pointer(&shared.board.low[rank_], lane) = block_least;
        *ptx::peer_pointer(&shared.board.high[rank_], lane) = block_most;
      }
    }
    ptx::cluster_sync();
    *low = min_of(shared.board.low, blocks_);
    *high = max_of(shared.board.high, blocks_);
  }

  /// One histogram over the cluster and the bin of the `need`-th element. Contains cluster
  /// barriers.
  template <class Classify>
  __device__ BinSearch
  search(uint32_t need, RowShared& shared, uint32_t* histogram, Classify classify) {
    ptx::cluster_sync();  // no peer still reads the last histogram or the board
    histogram[threadIdx.x] = 0;
    histogram[threadIdx.x + kTopkThreads] = 0;
    __syncthreads();
    for_each([&](uint32_t key, uint32_t entry) {
      classify(key, entry, [&](uint32_t bin) { atomicAdd(&histogram[bin], 1U); });
    });
    ptx::cluster_sync();
    const uint32_t pair = kTopkThreads - 1 - threadIdx.x;
    uint2 sum = make_uint2(0, 0);
    for (uint32_t r = 0; r < blocks_; ++r) {
      const uint2 part = *ptx::peer_pointer(reinterpret_cast<const uint2*>(histogram) + pair, r);
      sum.x += part.x;
      sum.y += part.y;
    }
    return find_bin(sum.y, sum.x, need, shared.bins);
  }

  float values_[4 * kVectors];
  uint32_t length_;
  uint32_t rank_;
  uint32_t blocks_;
};

}  // namespace baleen::kernels
