#pragma once
// A tile of rows as blocks of 64 heads keep it, and its expansion to bf16 in place.
//
//   expand_unit(wide_unit(shared, buffer, unit), scales, present, lane);
//
// A tile is eight units of eight rows, one per output warp. A unit holds eight blocks of 64 dims,
// each eight lines of 128 bytes in 128-byte swizzle: K-major for the scores, where rows are columns
// of the product, and MN-major for the output. Cached bytes wait in the unit's last 4.5 KB: a warp
// expands the first three blocks, which lie before them, then reads all that is left and writes the
// other blocks over it. The scale bytes of its rows wait between.
//
// Order of dims in a line: the dims that one tensor instruction sums (sparse_attention.h) are
// neighbours. Quad (j, t), dims 16 j + 4 t .. + 3 of a nope block, stands at byte 32 t + 8 j with
// its dims 0, 2, 1, 3 in that order, as the expansion leaves them; of the rope block, half h, dims
// 8 j + 4 t .. + 3 at byte 64 h + 32 t + 8 j in plain order.

#include <cstdint>

#include "kernels/cache_entry/row_math.cuh"
#include "kernels/sparse_attention/attention_tile.cuh"
#include "kernels/sparse_attention/row_expand.cuh"

namespace baleen::kernels {

inline constexpr int kWideHeads = 64;
inline constexpr int kWideUnitRows = AttentionShape<kWideHeads>::kUnitRows;
inline constexpr int kWideUnitBytes = AttentionShape<kWideHeads>::kUnitBytes;
inline constexpr int kWideBlockBytes = kWideUnitRows * 128;
inline constexpr int kWideRawBegin = AttentionShape<kWideHeads>::kRawBegin;
static_assert(kWideUnitBytes * kAttentionTileRows / kWideUnitRows == kTileBytes);
static_assert(kEarlyBlocks * kWideBlockBytes + kWideUnitRows * kKvScaleBytes <= kWideRawBegin &&
              kWideRawBegin % 16 == 0);

__device__ __forceinline__ uint8_t* wide_unit(const AttentionShared<kWideHeads>& shared,
                                              int buffer,
                                              int unit) {
  return shared.base + buffer * kTileBytes + unit * kWideUnitBytes;
}
/// Row of its unit that a lane expands: four lanes a row, dims 16 (l % 4) of each block. The order
/// keeps 16-byte loads (eight lanes at a time) and 8-byte stores (sixteen) free of bank conflicts.
__device__ __forceinline__ uint32_t wide_lane_row(uint32_t lane) {
  const uint32_t q = lane / 4;
  return 2 * (q & 3) + ((q & 1) ^ (q >> 2));
}

/// Where a lane writes its quads t = 0..3 of the first block.
struct WideLines {
  uint8_t* quad[4];
};

__device__ __forceinline__ WideLines wide_lines(uint8_t* unit, uint32_t lane) {
  const uint32_t row = wide_lane_row(lane);
  const uint32_t j = lane % 4;
  uint8_t* line = unit + row * 128 + (((j >> 1) ^ (row & 1)) << 4) + (j & 1) * 8;
  WideLines lines;
#pragma unroll
  for (uint32_t t = 0; t < 4; ++t) {
    lines.quad[t] = line + (((2 * t) ^ (row & 6)) << 4);
  }
  return lines;
}

/// `scales` are one_step_scales.
template <int kBlock>
__device__ __forceinline__ void expand_nope_block(const WideLines& lines,
                                                  uint4 codes,
                                                  uint2 scales) {
  const uint32_t multiplier =
      one_step_multiplier(__byte_perm(kBlock < 4 ? scales.x : scales.y, 0, 0x4440 + kBlock % 4));
  const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    const BfQuad quad = expand_e4m3(words[t], multiplier);
    *reinterpret_cast<uint2*>(lines.quad[t] + kBlock * kWideBlockBytes) =
        make_uint2(quad.even, quad.odd);
  }
}

/// The second product of large scales, over the quads that this lane wrote.
__device__ __forceinline__ void multiply_rest(uint8_t* unit, uint2 scales, uint32_t lane) {
  const WideLines lines = wide_lines(unit, lane);
#pragma unroll 1
  for (int block = 0; block < kKvScales; ++block) {
    const uint32_t rest = row_scale(scale_byte(scales, block)).rest;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      auto* quad = reinterpret_cast<uint2*>(lines.quad[t] + block * kWideBlockBytes);
      const uint2 pairs = *quad;
      *quad = make_uint2(ptx::multiply_bf16(pairs.x, rest), ptx::multiply_bf16(pairs.y, rest));
    }
  }
}

/// Expands the warp's unit. `scales` and `present` are those of this lane's row. A missing row
/// becomes finite numbers, whatever its place held: every e4m3 code expands to one, its scale is
/// taken as the smallest and its rope dims as zeros. Its weights are zero, so nothing of it counts.
__device__ __forceinline__ void expand_unit(uint8_t* unit,
                                            uint2 scales,
                                            bool present,
                                            uint32_t lane) {
  const uint8_t* from = unit + kWideRawBegin + wide_lane_row(lane) * kKvValueBytes + lane % 4 * 16;
  const WideLines lines = wide_lines(unit, lane);
  const auto read = [&](int s) { return *reinterpret_cast<const uint4*>(from + 64 * s); };
  uint4 segment[kSegments - kEarlyBlocks];
#pragma unroll
  for (int s = 0; s < kEarlyBlocks; ++s) {
    segment[s] = read(s);
  }
  const bool is_plain = __all_sync(kWholeWarp, present && !needs_rest(scales));
  uint2 first = scales;
  if (!is_plain) {
    scales = present ? scales : make_uint2(0, 0);
    first = one_step_scales(scales);
  }
  expand_nope_block<0>(lines, segment[0], first);
  expand_nope_block<1>(lines, segment[1], first);
  expand_nope_block<2>(lines, segment[2], first);
#pragma unroll
  for (int s = kEarlyBlocks; s < kSegments; ++s) {
    segment[s - kEarlyBlocks] = read(s);
  }
  if (!is_plain && !present) {
    segment[4] = make_uint4(0, 0, 0, 0);
    segment[5] = make_uint4(0, 0, 0, 0);
  }
  __syncwarp();  // every lane has read before anyone writes over the rows
  expand_nope_block<3>(lines, segment[0], first);
  expand_nope_block<4>(lines, segment[1], first);
  expand_nope_block<5>(lines, segment[2], first);
  expand_nope_block<6>(lines, segment[3], first);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint4 dims = segment[4 + half];
    *reinterpret_cast<uint2*>(lines.quad[2 * half] + kKvScales * kWideBlockBytes) =
        make_uint2(dims.x, dims.y);
    *reinterpret_cast<uint2*>(lines.quad[2 * half + 1] + kKvScales * kWideBlockBytes) =
        make_uint2(dims.z, dims.w);
  }
  if (!is_plain && needs_rest(scales)) {
    multiply_rest(unit, scales, lane);
  }
}

}  // namespace baleen::kernels
