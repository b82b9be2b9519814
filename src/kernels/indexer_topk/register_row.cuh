#pragma once
// One row of scores spread over the registers of a cluster, and the passes over it that need all
// blocks: a lower bound of the k-th best, and an exact cut when too many scores crowd at it.
// Words of 32 entries go round the blocks, so that a run of good neighbours is shared by all.
//
//   RegisterRow<8> row(scores, length, rank, blocks);
//   uint32_t floor = row.lower_bound(k, shared, &top);     // at least k scores reach `floor`
//
// A streamed row is longer than the registers. They first hold a sample of it, groups of four words
// taken evenly, whose lower bound is one of the row; the passes over the whole row load stretch
// after stretch.

#include <cstdint>

#include "kernels/indexer_topk/row_board.cuh"
#include "kernels/indexer_topk/score_key.cuh"
#include "kernels/indexer_topk/threshold_bin.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace baleen::kernels {

template <int kVectors, bool kStreams = false>
class RegisterRow {
 public:
  /// Loads the entries below `limit` (of a streamed row the sample of them); those at or beyond the
  /// row's length are cut off by `clip`.
  __device__ RegisterRow(const float* scores, uint32_t limit, uint32_t rank, uint32_t blocks)
      : length_(limit), rank_(rank), blocks_(blocks), scores_(scores) {
    if constexpr (kStreams) {
      spread_ = max((limit + held() - 1) / held(), 1U);
    }
    load();
  }

  /// Gives the row its length, at most the limit it was loaded with.
  __device__ void clip(uint32_t length) {
    length_ = length;
    if (first_entry(kVectors - 1) + 4 > length) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const bool valid = first_entry(v) + static_cast<uint32_t>(e) < length;
          values_[4 * v + e] = valid ? values_[4 * v + e] : kNone;
        }
      }
    }
  }

  /// Entry of element 0 of vector v; its four elements are neighbours.
  __device__ __forceinline__ uint32_t first_entry(int v) const {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t row_of_words = (static_cast<uint32_t>(v) * 4 + lane / 8) * kTopkWarps;
    uint32_t word = (row_of_words + threadIdx.x / 32) * blocks_ + rank_;
    if constexpr (kStreams) {
      if (spread_ > 0) {
        word = word / kSampleGroup * (kSampleGroup * spread_) + word % kSampleGroup;
      }
    }
    return begin_ + word * 32 + (lane % 8) * 4;
  }

  /// A key that at least k entries of the row reach, and the row's largest key; the same in every
  /// block. Uses that the n-th best of thread maxima is reached by n different entries: each block
  /// owes q = k / blocks of them, taken as the n-th best of some warps. The caller has waited for
  /// all blocks to start. By messages, which are there for one call, or with a cluster barrier.
  template <bool kByMessages>
  __device__ uint32_t lower_bound(uint32_t k, RowShared& shared, uint32_t* top) const {
    const uint32_t key = thread_best();
    const LevelShape shape(k, blocks_);
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t bound = shape.nth > 32 ? kNanKey : warp_nth_largest(key, shape.nth);
    const uint32_t warp_top = __reduce_max_sync(kFullMask, key);
    if (lane == 0) {
      shared.warp_low[warp] = bound;
      shared.warp_high[warp] = warp_top;
    }
    __syncthreads();
    if (warp == 0) {
      const uint32_t floor = nth_largest_of_32(shared.warp_low, shape.warps);
      const uint32_t block_top = __reduce_max_sync(kFullMask, shared.warp_high[lane]);
      if (lane < blocks_) {
        if constexpr (kByMessages) {
          const uint32_t told = ptx::peer_address(&shared.messages.bounds, lane);
          push_word(&shared.board.floor[rank_], lane, floor, told);
          push_word(&shared.board.top[rank_], lane, block_top, told);
        } else {
          *ptx::peer_pointer(&shared.board.floor[rank_], lane) = floor;
          *ptx::peer_pointer(&shared.board.top[rank_], lane) = block_top;
        }
      }
    }
    if constexpr (kByMessages) {
      ptx::barrier_wait_cluster(&shared.messages.bounds, 0);
    } else {
      ptx::cluster_sync();
    }
    *top = max_of(shared.board.top, blocks_);
    return max(kNanKey, min_of(shared.board.floor, blocks_));
  }

  /// A better bound than lower_bound (at least k entries reach it) for rows whose best lie in few
  /// blocks: the best of the bounds that 1, 2, 4, ... all blocks give together.
  __device__ __forceinline__ uint32_t lopsided_bound(uint32_t k, RowShared& shared) const {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t sorted = warp_sorted(thread_best());
    if (lane >= blocks_ && warp < kMaxLevels) {
      shared.board.level[warp][lane] = kAbsentKey;
    }
    for (uint32_t level = 0; blocks_ >> level > 0; ++level) {
      const LevelShape shape(k, blocks_ >> level);
      const uint32_t bound =
          __shfl_sync(kFullMask, sorted, static_cast<int>(min(shape.nth, 32U) - 1));
      if (lane == 0) {
        shared.warp_level[level][warp] = shape.nth > 32 ? kAbsentKey : bound;
      }
    }
    __syncthreads();
    if (blocks_ >> warp > 0) {  // warp w reduces level w
      const LevelShape shape(k, blocks_ >> warp);
      const uint32_t bound = nth_largest_of_32(shared.warp_level[warp], shape.warps);
      if (lane < blocks_) {
        *ptx::peer_pointer(&shared.board.level[warp][rank_], lane) = bound;
      }
    }
    ptx::cluster_sync();
    uint32_t best = kNanKey;
    for (uint32_t level = 0; blocks_ >> level > 0; ++level) {
      best = max(best, nth_largest_of_32(shared.board.level[level], blocks_ >> level));
    }
    return best;
  }

  /// Puts this block's entries above `floor` into `list` (in any block's shared memory), in no
  /// order, at most `capacity`; adds their number to shared.kept. Of a streamed row, those of the
  /// stretch in hand.
  __device__ __forceinline__ void push_above(uint32_t floor,
                                             uint64_t* list,
                                             uint32_t capacity,
                                             RowShared& shared) {
    push_above(
        floor, capacity, shared, [list](uint32_t place, uint64_t pair) { list[place] = pair; });
  }
  /// The same with `put(place, pair)` instead of a list.
  template <class Put>
  __device__ __forceinline__ void push_above(uint32_t floor,
                                             uint32_t capacity,
                                             RowShared& shared,
                                             Put put) {
    ptx::pin_registers(values_);  // keys are made where needed, not kept
    const float least = key_score(max(floor + 1, kLeastNumberKey));  // NaN, so none, above +inf
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (largest(v) >= least) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float value = values_[4 * v + e];
          if (value >= least) {
            const uint32_t place = atomicAdd(&shared.kept, 1U);
            if (place < capacity) {
              put(place, ranked(score_key(value), first_entry(v) + static_cast<uint32_t>(e)));
            }
          }
        }
      }
    }
  }

  /// push_above for every stretch of the row.
  __device__ __forceinline__ void push_all_above(uint32_t floor,
                                                 uint64_t* list,
                                                 uint32_t capacity,
                                                 RowShared& shared) {
    for_each_stretch([&] { push_above(floor, list, capacity, shared); });
  }

  /// The same for the entries below `limit` whose key is `tie_key`.
  __device__ __forceinline__ void push_ties(
      uint32_t tie_key, uint32_t limit, uint64_t* list, uint32_t capacity, RowShared& shared) {
    for_each([&](uint32_t key, uint32_t entry) {
      if (key == tie_key && entry < limit) {
        const uint32_t place = atomicAdd(&shared.kept, 1U);
        if (place < capacity) {
          list[place] = ranked(key, entry);
        }
      }
    });
  }

  /// A key such that fewer than k entries lie above it, at most `capacity` in all: either k or more
  /// lie above, or it is the key of the k-th best. Found digit by digit over the cluster, every
  /// level starting from the spread of what is left. `histogram` has kBins places in every block.
  __device__ __forceinline__ uint32_t refine(uint32_t floor,
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
        return low;
      }
      const uint32_t shift = bin_shift(high - low);
      const BinSearch found = search(need, shared, histogram, [&] {
        for_each([&](uint32_t key, uint32_t) {
          if (key >= low && key <= high) {
            atomicAdd(&histogram[(key - low) >> shift], 1U);
          }
        });
      });
      need -= found.above;
      low += found.bin << shift;
      high = min(high, low + ((1U << shift) - 1));
      if (k - need + found.count <= capacity) {
        return low - 1;
      }
    }
  }

  /// The entry below which at least `need` and few more entries have this key.
  __device__ __forceinline__ uint32_t tie_limit(uint32_t tie_key,
                                                uint32_t need,
                                                RowShared& shared,
                                                uint32_t* histogram) {
    const uint32_t shift = bin_shift(length_ - 1);
    const BinSearch found =
        search(need, shared, histogram, [&] { count_ties(tie_key, shift, histogram); });
    return (kBins - found.bin) << shift;
  }

 private:
  static constexpr float kNone = __builtin_nanf("");  // where the row has no entry

  /// How many entries each of `holders` blocks owes, as the n-th best of each of some warps.
  struct LevelShape {
    static constexpr uint32_t kWarps = kStreams ? kStreamedBoundWarps : kBoundWarps;
    uint32_t nth;
    uint32_t warps;
    __device__ LevelShape(uint32_t k, uint32_t holders) {
      const uint32_t quota = (k + holders - 1) / holders;
      const uint32_t most = quota > 32 * kWarps ? kTopkWarps : min(quota, kWarps);
      nth = (quota + most - 1) / most;
      warps = (quota + nth - 1) / nth;
    }
  };

  /// Entries that the registers of all blocks hold.
  __device__ __forceinline__ uint32_t held() const { return kVectors * 4 * kTopkThreads * blocks_; }

  __device__ __forceinline__ void load() {
    if (first_entry(kVectors - 1) + 4 <= length_) {  // all loads at once, without branches between
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        set(v, __ldcg(reinterpret_cast<const float4*>(scores_ + first_entry(v))));
      }
    } else {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        set(v, load_guarded(scores_, first_entry(v)));
      }
    }
  }

  /// Key of this thread's best score; NaN only when all are.
  __device__ __forceinline__ uint32_t thread_best() const {
    float best = kNone;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      best = fmaxf(best, largest(v));
    }
    return score_key(best);
  }

  __device__ __forceinline__ void set(int v, float4 four) {
    values_[4 * v] = four.x;
    values_[4 * v + 1] = four.y;
    values_[4 * v + 2] = four.z;
    values_[4 * v + 3] = four.w;
  }

  /// Reads nothing at or beyond the length; NaN stands there.
  __device__ __forceinline__ float4 load_guarded(const float* scores, uint32_t entry) const {
    float4 four = make_float4(kNone, kNone, kNone, kNone);
    if (entry + 4 <= length_) {
      four = __ldcg(reinterpret_cast<const float4*>(scores + entry));
    } else if (entry < length_) {
      four.x = __ldcg(scores + entry);
      four.y = entry + 1 < length_ ? __ldcg(scores + entry + 1) : kNone;
      four.z = entry + 2 < length_ ? __ldcg(scores + entry + 2) : kNone;
    }
    return four;
  }

  __device__ __forceinline__ float largest(int v) const {
    return fmaxf(fmaxf(values_[4 * v], values_[4 * v + 1]),
                 fmaxf(values_[4 * v + 2], values_[4 * v + 3]));
  }

  template <class Pass>
  __device__ __forceinline__ void for_each_stretch(Pass pass) {
    if constexpr (kStreams) {
      spread_ = 0;
      for (begin_ = 0; begin_ < length_; begin_ += held()) {
        load();
        pass();
      }
    } else {
      pass();
    }
  }

  template <class Visit>
  __device__ __forceinline__ void for_each(Visit visit) {
    for_each_stretch([&] {
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
    });
  }

  /// Shrinks [low, high] to the keys the row has in it (at least one).
  __device__ __forceinline__ void narrow(uint32_t* low, uint32_t* high, RowShared& shared) {
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

  /// Adds the entries of key `tie_key` to the bins of their numbers, lowest in the last bin. Ties
  /// crowd, so neighbours are added up first: four of a thread, 32 of eight lanes where a bin
  /// holds whole words.
  __device__ __forceinline__ void count_ties(uint32_t tie_key,
                                             uint32_t shift,
                                             uint32_t* histogram) {
    for_each_stretch([&] { count_ties_in_hand(tie_key, shift, histogram); });
  }
  __device__ __forceinline__ void count_ties_in_hand(uint32_t tie_key,
                                                     uint32_t shift,
                                                     uint32_t* histogram) {
    ptx::pin_registers(values_);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const uint32_t first = first_entry(v);
      uint32_t ties = 0;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const uint32_t entry = first + static_cast<uint32_t>(e);
        const bool tied = entry < length_ && score_key(values_[4 * v + e]) == tie_key;
        if (shift >= 2) {
          ties += tied ? 1U : 0U;
        } else if (tied) {
          atomicAdd(&histogram[kBins - 1 - (entry >> shift)], 1U);
        }
      }
      bool adds = true;
      if (shift >= 5) {
#pragma unroll
        for (int step = 1; step < 8; step *= 2) {
          ties += __shfl_xor_sync(kFullMask, ties, step);
        }
        adds = threadIdx.x % 8 == 0;
      }
      if (adds && ties > 0) {
        atomicAdd(&histogram[kBins - 1 - (first >> shift)], ties);
      }
    }
  }

  /// One histogram over the cluster, filled by `fill()`, and the bin of the `need`-th element.
  /// Contains cluster barriers.
  template <class Fill>
  __device__ __forceinline__ BinSearch
  search(uint32_t need, RowShared& shared, uint32_t* histogram, Fill fill) {
    ptx::cluster_sync();  // no peer still reads the last histogram or the board
    histogram[threadIdx.x] = 0;
    histogram[threadIdx.x + kTopkThreads] = 0;
    __syncthreads();
    fill();
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
  const float* scores_;
  uint32_t begin_ = 0;   // of the stretch in hand
  uint32_t spread_ = 0;  // of the sample in hand: groups of words from one to the next
};

}  // namespace baleen::kernels
