#pragma once
// The form of attention for few queries: its parameter, what its blocks keep in shared memory, and
// how dims, rows and heads lie in registers.
//
// A block has eight warps, a warp a block of 64 dims of all rows of its part (seven of e4m3 codes
// with one scale per row, the last one of bf16). Lane l loads 16 dims of rows l / 4, l / 4 + 8, ...
// straight into registers, where the expanded codes are the row operand of the scores; transposed
// between lanes they are that of the output. Codes stay 2^120 too small (row_expand.cuh) and
// without their row's scale: q is multiplied with 2^60 and scores with what is left, weights with
// the scale relative to the largest one of the warp's rows, so that partial outputs fit f16. Where
// scales of rows lie far apart, each head's partial output is made as large as f16 holds.

#include <cstdint>

#include "kernels/ptx/mbarrier.cuh"
#include "kernels/sparse_attention/sparse_attention.h"

namespace baleen::kernels {

inline constexpr int kFewWarps = kKvDims / 64;
inline constexpr int kFewThreads = 32 * kFewWarps;
inline constexpr int kFewUnits = kKvDims / 16;         // the output's tiles
inline constexpr uint32_t kQueryFactor = 0x5D805D80U;  // 2^60 twice
inline constexpr uint32_t kOneBf16 = 0x3F80U;
inline constexpr float kFewNoMaximum = -1e30F;  // below every score, far from infinity

/// A source as the device wants it, made on the host. An absent one has no slots.
struct FewSource {
  const int32_t* table;    // rows of a list, or pages
  const int32_t* lengths;  // or null
  uint64_t base;
  int64_t stride;  // of the table, from query to query
  uint32_t rows_per_page;
  uint32_t page_units;  // 16 bytes each
  uint32_t page_magic;  // page = (2 * row * magic >> 32) >> page_shift
  uint32_t page_shift;
  int32_t capacity;     // slots where `lengths` is null
  int32_t entry_shift;  // slots per entry of the table as a power of two
};

/// The kernel's parameter: as little as it can be, since every line of it is read from far.
struct FewParams {
  int32_t heads;
  FewSource first;
  FewSource second;
  const uint16_t* q;
  const float* sink;
  float scale;  // of scores, in powers of two
  uint16_t* o;
  float* lse;
  float* lse_with_sink;
  const int32_t* positions;
  const float* frequencies;
};

/// A row of a block.
struct FewPlace {
  uint64_t values;  // addresses; zeros where there is no row
  uint64_t scales;  // kNoRow: none
};
inline constexpr uint32_t kNoRow = 1;  // where addresses are multiples of 8

/// Rows of a block come in eights, halves of a tensor operand's sixteen.
template <int kHalves>
struct FewShape {
  static constexpr int kRows = 8 * kHalves;
  static constexpr int kTiles = (kHalves + 1) / 2;
  static constexpr int kPasses = (kRows + 31) / 32;  // of a warp over rows
};

template <int kHeads, int kHalves, int kCluster>
struct FewShared {
  using Shape = FewShape<kHalves>;
  static constexpr int kScoreStride = 16 * Shape::kTiles + 4;      // floats: no bank conflicts
  static constexpr int kWeightStride = 16 * Shape::kTiles + 8;     // bf16
  static constexpr int kOwnWarps = (8 + kCluster - 1) / kCluster;  // whose dims a rank joins

  uint4 query[kFewWarps][kHeads][8];         // a warp's dims in chunks of eight
  uint2 inbox[kFewUnits * kHeads / 8 * 32];  // f16 [rank it comes from][unit][8 heads][lane][4]
  FewPlace places[Shape::kRows];
  float scores[kFewWarps][kHeads][kScoreStride];
  float score_scales[kFewWarps][16 * Shape::kTiles];
  float2 totals[kCluster][kHeads];                   // maximum and sum, by rank
  float output_scales[kOwnWarps][kCluster][kHeads];  // what f16 is multiplied with, by rank
  uint16_t weights[kHeads][kWeightStride];
  uint16_t weight_scales[kFewWarps][16 * Shape::kTiles];  // bf16
  ptx::Barrier totals_received;
  ptx::Barrier received;  // peers' partial outputs
};

/// First of the eight dims that lane l % 4 = `t` has from its two loads of q, in a block of 64.
__device__ __forceinline__ int few_dim(bool is_rope, int t, int load) {
  return is_rope ? 8 * t + 32 * load : 16 * t + 8 * load;
}

}  // namespace baleen::kernels
