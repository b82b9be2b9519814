#pragma once
// The end of the choice, by one block: the exact k best of a few thousand candidates in its shared
// memory, written in ascending order of entries. The candidates may stand in any order: winners are
// marked in a bit map of the row, and a mark's place follows from the marks before it.
//
//   const Candidates candidates(arena.list, capacity, counts, blocks);
//   choose_and_write(k, words, low_key, high_key, arena, shared, candidates, output);

#include <cstdint>

#include "kernels/indexer_topk/register_row.cuh"

namespace baleen::kernels {

inline constexpr uint32_t kSmallList = 256;  // so few are ranked by comparing all pairs

/// Where the picks of one row go; either array may be null.
struct RowOutput {
  int32_t* indices;
  int32_t* slots;
  const int32_t* pages;
  uint32_t page_shift;

  __device__ __forceinline__ void write(uint32_t place, uint32_t entry) const {
    if (indices != nullptr) {
      indices[place] = static_cast<int32_t>(entry);
    }
    if (slots != nullptr) {
      const uint32_t rest = entry & ((1U << page_shift) - 1);
      slots[place] = (pages[entry >> page_shift] << page_shift) + static_cast<int32_t>(rest);
    }
  }
  __device__ __forceinline__ void write_none(int64_t place) const {
    if (indices != nullptr) {
      indices[place] = -1;
    }
    if (slots != nullptr) {
      slots[place] = -1;
    }
  }
};

/// Dynamic shared memory of a block; sizes are captured maxima. In the first block of a cluster the
/// arrays other than the lists start as 0.
struct TopkArena {
  uint64_t* list;          // blocks * capacity candidates, those of block r from r * capacity
  uint64_t* small_list;    // kSmallList
  uint32_t* histogram;     // kBins
  uint32_t* marks;         // one bit per entry, a multiple of 8 words
  uint16_t* marks_before;  // per word of `marks`: marks in lower words
};

/// The candidates of one thread: two in registers, the rest (crowded rows only) read again each
/// time.
class Candidates {
 public:
  /// Threads are divided evenly over the parts that the blocks of the cluster filled.
  __device__ Candidates(const uint64_t* list,
                        uint32_t capacity,
                        const uint32_t* counts,
                        uint32_t blocks)
      : share_(kTopkThreads / blocks) {
    const uint32_t block = threadIdx.x / share_;
    const uint32_t at = threadIdx.x % share_;
    count_ = counts[block];
    next_ = at + 2 * share_;
    part_ = list + block * capacity;
    first_ = at < count_ ? part_[at] : 0;
    second_ = at + share_ < count_ ? part_[at + share_] : 0;
  }

  template <class Visit>
  __device__ __forceinline__ void for_each(Visit visit) const {
    uint64_t pair = first_;
    uint64_t following = second_;
    uint32_t next = next_;
    while (pair != 0) {  // no candidate is 0: its key is at least kNanKey
      visit(pair);
      pair = following;
      following = next < count_ ? part_[next] : 0;
      next += share_;
    }
  }

 private:
  const uint64_t* part_;
  uint64_t first_;
  uint64_t second_;
  uint32_t share_;
  uint32_t count_;
  uint32_t next_;
};

/// Shrinks [low, high] to the candidates in it (at least one). Two block barriers.
__device__ __forceinline__ void narrow_pairs(uint64_t* low,
                                             uint64_t* high,
                                             uint64_t* scratch,
                                             const Candidates& candidates) {
  if (threadIdx.x == 0) {
    scratch[0] = ~0ULL;
    scratch[1] = 0;
  }
  __syncthreads();
  uint64_t least = ~0ULL;
  uint64_t most = 0;
  candidates.for_each([&](uint64_t pair) {
    if (pair >= *low && pair <= *high) {
      least = min(least, pair);
      most = max(most, pair);
    }
  });
#pragma unroll
  for (uint32_t step = 16; step > 0; step /= 2) {
    least = min(least, static_cast<uint64_t>(__shfl_xor_sync(kFullMask, least, step)));
    most = max(most, static_cast<uint64_t>(__shfl_xor_sync(kFullMask, most, step)));
  }
  if (threadIdx.x % 32 == 0) {
    atomicMin(reinterpret_cast<unsigned long long*>(&scratch[0]), least);
    atomicMax(reinterpret_cast<unsigned long long*>(&scratch[1]), most);
  }
  __syncthreads();
  *low = scratch[0];
  *high = scratch[1];
}

/// What is left to choose: `need` of the candidates in [low, high], and all above.
struct PairRange {
  uint64_t low;
  uint64_t high;
  uint32_t need;
};

/// The bin of the `need`-th candidate after the histogram was filled; clears the histogram.
__device__ __forceinline__ BinSearch take_bin(uint32_t need,
                                              const TopkArena& arena,
                                              RowShared& shared) {
  __syncthreads();
  uint2* const pair = reinterpret_cast<uint2*>(arena.histogram) + (kTopkThreads - 1 - threadIdx.x);
  const uint2 counts = *pair;
  *pair = make_uint2(0, 0);
  return find_bin(counts.y, counts.x, need, shared.bins);
}

/// Narrows until at most kSmallList candidates share the range.
__device__ inline void narrow_crowd(PairRange* range,
                                    const TopkArena& arena,
                                    RowShared& shared,
                                    const Candidates& candidates) {
  BinSearch found;
  do {
    narrow_pairs(&range->low, &range->high, arena.small_list, candidates);
    const uint64_t low = range->low;
    const uint64_t high = range->high;
    const uint32_t shift = bin_shift(high - low);
    candidates.for_each([&](uint64_t pair) {
      if (pair >= low && pair <= high) {
        atomicAdd(&arena.histogram[(pair - low) >> shift], 1U);
      }
    });
    found = take_bin(range->need, arena, shared);
    range->need -= found.above;
    range->low += static_cast<uint64_t>(found.bin) << shift;
    range->high = min(high, range->low + ((uint64_t{1} << shift) - 1));
  } while (found.count > kSmallList);
}

/// Writes the k best of the candidates in ascending order of entries. All have keys in
/// [low_key, high_key] and entries in the first `words` words, and there are at least k.
__device__ __forceinline__ void choose_and_write(uint32_t k,
                                                 uint32_t words,
                                                 uint32_t low_key,
                                                 uint32_t high_key,
                                                 const TopkArena& arena,
                                                 RowShared& shared,
                                                 const Candidates& candidates,
                                                 const RowOutput& output) {
  const uint32_t shift = bin_shift(high_key - low_key);
  candidates.for_each([&](uint64_t pair) {
    atomicAdd(&arena.histogram[(static_cast<uint32_t>(pair >> 32) - low_key) >> shift], 1U);
  });
  const BinSearch found = take_bin(k, arena, shared);
  PairRange range;
  range.need = k - found.above;
  range.low = static_cast<uint64_t>(low_key + (found.bin << shift)) << 32;
  range.high = range.low + ((uint64_t{1} << (shift + 32)) - 1);
  if (found.count > kSmallList) [[unlikely]] {
    narrow_crowd(&range, arena, shared, candidates);
  }
  const auto mark = [&](uint64_t pair) {
    const uint32_t entry = ranked_entry(pair);
    atomicOr(&arena.marks[entry / 32], 1U << (entry % 32));
  };
  candidates.for_each([&](uint64_t pair) {
    if (pair > range.high) {
      mark(pair);
    } else if (pair >= range.low) {
      arena.small_list[atomicAdd(&shared.small, 1U)] = pair;
    }
  });
  __syncthreads();
  if (threadIdx.x < shared.small) {
    const uint64_t mine = arena.small_list[threadIdx.x];
    uint32_t better = 0;
    for (uint32_t i = 0; i < shared.small; ++i) {
      better += arena.small_list[i] > mine ? 1U : 0U;
    }
    if (better < range.need) {
      mark(mine);
    }
  }
  __syncthreads();
  // Every thread counts the marks of 8 words.
  const uint32_t first = threadIdx.x * 8;
  uint32_t counts[8] = {};
  uint32_t sum = 0;
  if (first < words) {
    const uint4* marks = reinterpret_cast<const uint4*>(arena.marks + first);
    const uint4 a = marks[0];
    const uint4 b = marks[1];
    const uint32_t word[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      counts[i] = sum;
      sum += static_cast<uint32_t>(__popc(word[i]));
    }
  }
  const uint32_t in_warp = warp_inclusive_sum(sum);
  const uint32_t warp_sum = __shfl_sync(kFullMask, in_warp, 31);
  const uint32_t before = sum_of_warps_before(warp_sum, shared.bins.warp_sums) + in_warp - sum;
  if (first < words) {
    uint32_t packed[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      packed[i] = (before + counts[2 * i]) | ((before + counts[2 * i + 1]) << 16);
    }
    *reinterpret_cast<uint4*>(arena.marks_before + first) =
        make_uint4(packed[0], packed[1], packed[2], packed[3]);
  }
  __syncthreads();
  candidates.for_each([&](uint64_t pair) {
    const uint32_t entry = ranked_entry(pair);
    const uint32_t word = arena.marks[entry / 32];
    const uint32_t bit = 1U << (entry % 32);
    if ((word & bit) != 0) {
      const uint32_t below = static_cast<uint32_t>(__popc(word & (bit - 1)));
      output.write(arena.marks_before[entry / 32] + below, entry);
    }
  });
}

}  // namespace baleen::kernels
