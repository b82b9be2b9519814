#pragma once
// The end of the choice, by one block: the exact k best of a few thousand candidates in its shared
// memory, written in ascending order of entries. The candidates may stand in any order: winners are
// marked in a bit map of the row, and a mark's place follows from the marks before it.
//
//   choose_and_write(list, counts, regions, k, low, high, length, output, arena);

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

/// Dynamic shared memory of a block; sizes are captured maxima. `marks` and the histogram start as
/// 0.
struct TopkArena {
  uint64_t* list;          // blocks * capacity candidates, those of block r from r * capacity
  uint32_t* marks;         // one bit per entry, a multiple of 8 words
  uint16_t* marks_before;  // per word of `marks`
  uint32_t* histogram;     // kBins
  uint64_t* small_list;    // kSmallList
};

/// Visits the candidates of all blocks; threads are divided evenly over the blocks' parts.
template <class Visit>
__device__ __forceinline__ void for_each_candidate(
    const uint64_t* list, uint32_t capacity, const uint32_t* counts, uint32_t blocks, Visit visit) {
  const uint32_t share = kTopkThreads / blocks;
  const uint32_t block = threadIdx.x / share;
  const uint64_t* part = list + block * capacity;
  const uint32_t count = counts[block];
  for (uint32_t i = threadIdx.x % share; i < count; i += share) {
    visit(part[i]);
  }
}

/// Shrinks [low, high] to the candidates in it (at least one). Two block barriers.
template <class ForEach>
__device__ __forceinline__ void narrow_pairs(uint64_t* low,
                                             uint64_t* high,
                                             uint64_t* scratch,
                                             ForEach for_each) {
  if (threadIdx.x == 0) {
    scratch[0] = ~0ULL;
    scratch[1] = 0;
  }
  __syncthreads();
  uint64_t least = ~0ULL;
  uint64_t most = 0;
  for_each([&](uint64_t pair) {
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

/// Marks the k best of the candidates; all have keys in [low_key, high_key] and there are at least
/// k.
template <class ForEach>
__device__ void mark_winners(uint32_t k,
                             uint32_t low_key,
                             uint32_t high_key,
                             const TopkArena& arena,
                             RowShared& shared,
                             ForEach for_each) {
  const auto mark = [&](uint64_t pair) {
    const uint32_t entry = ranked_entry(pair);
    atomicOr(&arena.marks[entry / 32], 1U << (entry % 32));
  };
  uint64_t low = static_cast<uint64_t>(low_key) << 32;
  uint64_t high = (static_cast<uint64_t>(high_key) << 32) | 0xFFFFFFFFU;
  uint32_t need = k;
  uint64_t* histogram_pairs = reinterpret_cast<uint64_t*>(arena.histogram);
  while (true) {
    const uint32_t shift = bin_shift(high - low);
    for_each([&](uint64_t pair) {
      if (pair >= low && pair <= high) {
        atomicAdd(&arena.histogram[(pair - low) >> shift], 1U);
      }
    });
    __syncthreads();
    const uint32_t at = kTopkThreads - 1 - threadIdx.x;
    const uint64_t counts = histogram_pairs[at];
    histogram_pairs[at] = 0;  // for the next level
    const BinSearch found = find_bin(
        static_cast<uint32_t>(counts >> 32), static_cast<uint32_t>(counts), need, shared.bins);
    need -= found.above;
    low += static_cast<uint64_t>(found.bin) << shift;
    high = min(high, low + ((uint64_t{1} << shift) - 1));
    if (found.count <= kSmallList) {
      break;
    }
    narrow_pairs(&low, &high, arena.small_list, for_each);
  }
  for_each([&](uint64_t pair) {
    if (pair > high) {
      mark(pair);
    } else if (pair >= low) {
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
    if (better < need) {
      mark(mine);
    }
  }
  __syncthreads();
}

/// Fills marks_before: how many marks stand in lower words. `words` <= 8 * 1,024.
__device__ __forceinline__ void count_marks(uint32_t words,
                                            const TopkArena& arena,
                                            RowShared& shared) {
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
}

template <class ForEach>
__device__ __forceinline__ void write_marked(const TopkArena& arena,
                                             const RowOutput& output,
                                             ForEach for_each) {
  for_each([&](uint64_t pair) {
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
