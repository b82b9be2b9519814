#pragma once
// Block-wide search in a histogram: which bin, counted from the top, holds the wanted element.
// Every thread of a block of 1,024 calls; contains block barriers.
//
//   BinSearch found = find_bin(count_of_bin(2047 - 2 * t), count_of_bin(2046 - 2 * t), need,
//   scratch);

#include <cstdint>

namespace baleen::kernels {

inline constexpr uint32_t kTopkThreads = 1024;
inline constexpr uint32_t kTopkWarps = kTopkThreads / 32;
inline constexpr uint32_t kBins = 2 * kTopkThreads;
inline constexpr uint32_t kBinBits = 11;
inline constexpr uint32_t kFullMask = 0xFFFFFFFFU;

struct BinSearch {
  uint32_t bin;    // holds the `need`-th element from the top
  uint32_t above;  // elements in higher bins
  uint32_t count;  // elements in the bin
};

struct BinScratch {
  uint32_t warp_sums[kTopkWarps];
  BinSearch found;
};

/// Sum over the lower-numbered warps' values; `mine` is this lane's value. Contains one barrier.
__device__ __forceinline__ uint32_t sum_of_warps_before(uint32_t warp_sum, uint32_t* warp_sums) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warp = threadIdx.x / 32;
  if (lane == 0) {
    warp_sums[warp] = warp_sum;
  }
  __syncthreads();
  return __reduce_add_sync(kFullMask, lane < warp ? warp_sums[lane] : 0U);
}

__device__ __forceinline__ uint32_t warp_inclusive_sum(uint32_t value) {
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(kFullMask, value, step);
    value += lane >= step ? other : 0U;
  }
  return value;
}

/// Thread t gives the counts of bins kBins - 1 - 2t (`upper`) and kBins - 2 - 2t (`lower`). The
/// bins hold at least `need` >= 1 elements.
__device__ __forceinline__ BinSearch find_bin(uint32_t upper,
                                              uint32_t lower,
                                              uint32_t need,
                                              BinScratch& scratch) {
  const uint32_t warp_sum = __reduce_add_sync(kFullMask, upper + lower);
  const uint32_t warp_before = sum_of_warps_before(warp_sum, scratch.warp_sums);
  if (warp_before < need && need <= warp_before + warp_sum) {
    const uint32_t before = warp_before + warp_inclusive_sum(upper + lower) - upper - lower;
    if (before < need && need <= before + upper + lower) {
      const uint32_t top = kBins - 1 - 2 * threadIdx.x;
      scratch.found = need <= before + upper ? BinSearch{top, before, upper}
                                             : BinSearch{top - 1, before + upper, lower};
    }
  }
  __syncthreads();
  return scratch.found;
}

/// The shift that makes `range` (inclusive width) fit the bins.
__device__ __forceinline__ uint32_t bin_shift(uint64_t range) {
  const int bits = 64 - __clzll(static_cast<long long>(range));
  return bits > static_cast<int>(kBinBits) ? static_cast<uint32_t>(bits) - kBinBits : 0U;
}

}  // namespace baleen::kernels
