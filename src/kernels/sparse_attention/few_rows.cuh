#pragma once
// Rows of a block for the form for few queries: a thread per row finds it, then all lanes load
// their part of every row.
//
//   if (thread < kRows) { places[thread] = few_place(params, slots, slot, entry); }
//   __syncthreads();
//   FewScales<kHalves> scales; scales.read(places); load_rows<kHalves>(places, words);

#include <cstdint>

#include "kernels/cache_entry/row_math.cuh"
#include "kernels/ptx/byte_permute.cuh"
#include "kernels/ptx/read_only_load.cuh"
#include "kernels/sparse_attention/few_tile.cuh"
#include "kernels/sparse_attention/row_expand.cuh"

namespace baleen::kernels {

/// What a missing row reads.
__device__ const uint4 few_nothing[kKvValueBytes / 16] = {};

/// Slots [begin, end) of a query: those of the first source, then those of the second.
struct FewSlots {
  int32_t begin;
  int32_t end;
  int32_t first_length;
  const int32_t* tables[2];  // of this query
};

__device__ __forceinline__ int32_t few_length(const FewSource& source, int32_t query) {
  const int32_t length =
      source.lengths != nullptr ? __ldg(source.lengths + query) : source.capacity;
  return max(length, 0);
}

template <int kCluster>
__device__ __forceinline__ FewSlots few_slots(const FewParams& params,
                                              int32_t query,
                                              int32_t part) {
  FewSlots slots;
  slots.first_length = few_length(params.first, query);
  const int32_t total = slots.first_length + few_length(params.second, query);
  const int32_t each = (total + kCluster - 1) / kCluster;
  slots.begin = min(total, part * each);
  slots.end = min(total, slots.begin + each);
  slots.tables[0] = params.first.table + query * params.first.stride;
  slots.tables[1] = params.second.table + query * params.second.stride;
  return slots;
}

/// What the list or the page table says of a slot; -1 beyond the end.
__device__ __forceinline__ int32_t few_entry(const FewParams& params,
                                             const FewSlots& slots,
                                             int32_t slot) {
  const bool in_first = slot < slots.first_length;
  const int32_t at = in_first ? slot >> params.first.entry_shift
                              : (slot - slots.first_length) >> params.second.entry_shift;
  const int32_t* table = in_first ? slots.tables[0] : slots.tables[1];
  return slot < slots.end ? __ldg(table + at) : -1;
}

/// The row at a slot with its entry.
__device__ __forceinline__ FewPlace few_place(const FewParams& params,
                                              const FewSlots& slots,
                                              int32_t slot,
                                              int32_t entry) {
  const bool in_first = slot < slots.first_length;
  const int32_t shift = in_first ? params.first.entry_shift : params.second.entry_shift;
  const int32_t local = in_first ? slot : slot - slots.first_length;
  const auto row = static_cast<uint32_t>((entry << shift) + (local & ((1 << shift) - 1)));
  const uint32_t magic = in_first ? params.first.page_magic : params.second.page_magic;
  const uint32_t page_shift = in_first ? params.first.page_shift : params.second.page_shift;
  const uint32_t per_page = in_first ? params.first.rows_per_page : params.second.rows_per_page;
  const uint32_t units = in_first ? params.first.page_units : params.second.page_units;
  const uint64_t base = in_first ? params.first.base : params.second.base;
  const uint32_t page = __umulhi(2 * row, magic) >> page_shift;
  const uint32_t in_page = row - page * per_page;
  const uint64_t begin = base + static_cast<uint64_t>(page) * units * 16;
  FewPlace place = {begin + in_page * static_cast<uint32_t>(kKvValueBytes),
                    begin + per_page * static_cast<uint32_t>(kKvValueBytes) +
                        in_page * static_cast<uint32_t>(kKvScaleBytes)};
  if (entry < 0) {
    place = {reinterpret_cast<uint64_t>(few_nothing), kNoRow};
  }
  return place;
}

/// Scale bytes of this warp's dims of rows l, l + 32, ..., and whether these rows are there.
template <int kHalves>
struct FewScales {
  static constexpr int kPasses = FewShape<kHalves>::kPasses;
  bool present[kPasses];
  uint32_t byte[kPasses];

  __device__ __forceinline__ void read(const FewPlace* places) {
    const int warp = static_cast<int>(threadIdx.x / 32);
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int row = lane + 32 * pass;
      present[pass] = false;
      byte[pass] = 0;
      if (row < FewShape<kHalves>::kRows) {
        const uint64_t at = places[row].scales;
        present[pass] = (static_cast<uint32_t>(at) & kNoRow) == 0;
        if (present[pass]) {
          byte[pass] = ptx::load_static_byte(reinterpret_cast<const uint8_t*>(at) + warp);
        }
      }
    }
  }
};

/// This lane's first bytes of a row.
__device__ __forceinline__ uint64_t lane_bytes(const FewPlace& place) {
  return place.values + (static_cast<int>(threadIdx.x / 32) * 64 + threadIdx.x % 4 * 16);
}

/// words[h]: this lane's dims of row 8 h + lane / 4 as they are cached.
template <int kHalves>
__device__ __forceinline__ void load_rows(const FewPlace* places, uint32_t (&words)[kHalves][8]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const bool is_rope = static_cast<int>(threadIdx.x / 32) == kFewWarps - 1;
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    const auto* from = reinterpret_cast<const uint4*>(lane_bytes(places[8 * h + lane / 4]));
    const uint4 low = ptx::load_static_16(from);
    words[h][0] = low.x;
    words[h][1] = low.y;
    words[h][2] = low.z;
    words[h][3] = low.w;
    if (is_rope) {
      const uint4 high = ptx::load_static_16(from + 4);
      words[h][4] = high.x;
      words[h][5] = high.y;
      words[h][6] = high.z;
      words[h][7] = high.w;
    }
  }
}

/// Bf16 pairs of four codes, without their scale: 2^-120 of their values.
__device__ __forceinline__ void spread_codes(uint32_t codes, uint32_t& even, uint32_t& odd) {
  constexpr uint32_t kSigns = 0x80008000U;
  constexpr uint32_t kRest = 0x07F007F0U;
  odd = (codes & kSigns) | ((codes >> 4) & kRest);
  even = ((codes << 8) & kSigns) | ((codes << 4) & kRest);
}

/// Words as they are cached -> pairs (0, 2) and (1, 3) of four dims.
template <int kHalves>
__device__ __forceinline__ void expand_rows(uint32_t (&words)[kHalves][8]) {
  const bool is_rope = static_cast<int>(threadIdx.x / 32) == kFewWarps - 1;
  if (!is_rope) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
#pragma unroll
      for (int k = 3; k >= 0; --k) {
        spread_codes(words[h][k], words[h][2 * k], words[h][2 * k + 1]);
      }
    }
  } else {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const uint32_t a = words[h][2 * k];
        const uint32_t b = words[h][2 * k + 1];
        words[h][2 * k] = ptx::permute_bytes(a, b, 0x5410);
        words[h][2 * k + 1] = ptx::permute_bytes(a, b, 0x7632);
      }
    }
  }
}

}  // namespace baleen::kernels
