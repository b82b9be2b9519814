#pragma once
// A block's rows in the form for few queries: scores, weights, output.
//
//   score_few_rows(shared, words, q);           __syncthreads();
//   weigh_few_rows(shared, rows, scale, state);  __syncthreads();
//   accumulate_few_rows(shared, words, output);
//
// Scores are summed over the warps in ascending order; a warp then has kHeads / 8 heads and a lane
// of it rows l, l + 32, ...

#include <cstdint>

#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/convert.cuh"
#include "kernels/ptx/exp2.cuh"
#include "kernels/ptx/warp_product.cuh"
#include "kernels/sparse_attention/few_rows.cuh"
#include "kernels/sparse_attention/few_tile.cuh"

namespace baleen::kernels {

/// Asks this warp's dims of q into its part of shared memory: chunks of eight dims, exchanged with
/// the head's number so that take_query() meets no bank twice.
template <int kHeads>
__device__ __forceinline__ void ask_query(const FewParams& params,
                                          int64_t first_row,
                                          uint4 (&places)[kHeads][8]) {
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int chunk = static_cast<int>(threadIdx.x % 8);
  const int first = static_cast<int>(threadIdx.x % 32) / 8;
  const uint16_t* from = params.q + (first_row + first) * kKvDims + 64 * warp + 8 * chunk;
#pragma unroll
  for (int i = 0; i < kHeads / 4; ++i) {
    const int head = 4 * i + first;
    ptx::async_copy_16(&places[head][chunk ^ (head % 8)], from + 4 * i * kKvDims, 16);
  }
  ptx::async_copy_commit();
}

/// Column operands of q: words of eight heads, lane l / 4 the head, dims as the rows' words.
template <int kHeads>
__device__ __forceinline__ void take_query(const uint4 (&places)[kHeads][8],
                                           bool is_rope,
                                           uint32_t (&q)[kHeads / 8][8]) {
  const int group = static_cast<int>(threadIdx.x % 32) / 4;
  const int t = static_cast<int>(threadIdx.x % 4);
  ptx::async_copy_wait<0>();
  __syncwarp();
#pragma unroll
  for (int c = 0; c < kHeads / 8; ++c) {
#pragma unroll
    for (int load = 0; load < 2; ++load) {
      const uint4 dims = places[8 * c + group][(few_dim(is_rope, t, load) / 8) ^ group];
      q[c][4 * load] = dims.x;
      q[c][4 * load + 1] = dims.y;
      q[c][4 * load + 2] = dims.z;
      q[c][4 * load + 3] = dims.w;
    }
  }
}

/// Into the order of the rows' words, and larger where those are smaller.
template <int kHeads>
__device__ __forceinline__ void arrange_query(uint32_t (&q)[kHeads / 8][8], bool is_rope) {
  const uint32_t factor = is_rope ? kOneBf16 * 0x10001U : kQueryFactor;
#pragma unroll
  for (int c = 0; c < kHeads / 8; ++c) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint32_t a = q[c][2 * k];
      const uint32_t b = q[c][2 * k + 1];
      q[c][2 * k] = ptx::multiply_bf16(ptx::permute_bytes(a, b, 0x5410), factor);
      q[c][2 * k + 1] = ptx::multiply_bf16(ptx::permute_bytes(a, b, 0x7632), factor);
    }
  }
}

/// Exponents of bf16 rows: the largest, and the smallest that any lane has as the largest of its
/// dims of a row; zeros take no part in the latter.
struct FewExponents {
  uint32_t most;
  uint32_t least;
};
template <int kHalves>
__device__ __forceinline__ FewExponents rope_exponents(const uint32_t (&words)[kHalves][8]) {
  uint32_t most = 0;
  uint32_t least = 0xFFFFU;
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    uint32_t pair = words[h][0] & 0x7FFF7FFFU;
#pragma unroll
    for (int k = 1; k < 8; ++k) {
      pair = __vmaxu2(pair, words[h][k] & 0x7FFF7FFFU);
    }
    const uint32_t row = max(pair & 0xFFFFU, pair >> 16);
    most = max(most, row);
    least = min(least, row == 0 ? 0xFFFFU : row);
  }
  return {__reduce_max_sync(kWholeWarp, most) >> 7, __reduce_min_sync(kWholeWarp, least) >> 7};
}

/// What a warp's partial output is to be multiplied with.
struct FewOutputScale {
  float factor;
  bool is_wide;  // rows' scales differ so much that f16 may not hold what a head has of it
};
inline constexpr uint32_t kWideScales = 5;  // powers of two: codes go down to 2^-9, f16 to 2^-14
inline constexpr uint32_t kRopeRoom = 8;    // powers of two that the sum of 48 rows leaves in f16

/// Scales of this warp's dims to where all its lanes find them: for scores, and for weights
/// relative to the largest. Scales too large for one product go into the words.
template <int kHalves, class Shared>
__device__ __forceinline__ FewOutputScale apply_scales(Shared& shared,
                                                       const FewScales<kHalves>& scales,
                                                       uint32_t (&words)[kHalves][8],
                                                       bool is_rope) {
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  constexpr int kPasses = FewShape<kHalves>::kPasses;
  uint32_t most = 0;
  uint32_t least = 255;
  if (is_rope) {
    const FewExponents exponents = rope_exponents<kHalves>(words);
    most = max(exponents.most, kRopeRoom);  // values are below 2^(most - 126)
    least = exponents.least;
  } else {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      most = max(most, scales.byte[pass]);
      least = min(least, scales.present[pass] ? scales.byte[pass] : 255U);
    }
    most = __reduce_max_sync(kWholeWarp, most);
    least = __reduce_min_sync(kWholeWarp, least);
  }
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const int row = lane + 32 * pass;
    if (row < FewShape<kHalves>::kRows) {
      const uint32_t step = min(scales.byte[pass], kLargestOneStepScale);
      // 2^(step - 127) * 2^120 / 2^60, and 2^(step - most) * 2^120; of bf16 rows 1, and 2^(127 -
      // most) with the room there is.
      const uint32_t score = is_rope ? 127 : step + 60;
      const uint32_t weight = is_rope ? 254 + kRopeRoom : step + 247;
      shared.score_scales[warp][row] = __uint_as_float(score << 23);
      shared.weight_scales[warp][row] =
          static_cast<uint16_t>(weight > most ? (weight - most) << 7 : 0);
    }
  }
  if (!is_rope && most > kLargestOneStepScale) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const uint32_t byte = __shfl_sync(kWholeWarp, scales.byte[h / 4], 8 * (h % 4) + lane / 4);
      const uint32_t rest = row_scale(byte).rest;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        words[h][k] = ptx::multiply_bf16(words[h][k], rest);
      }
    }
  }
  __syncwarp();
  const uint32_t exponent = is_rope ? most - kRopeRoom : most;
  return {__uint_as_float(exponent == 0 ? 0x00400000U : exponent << 23),  // 2^(exponent - 127)
          most > least + kWideScales};
}

/// Scores of this warp's dims into shared memory; the words are transposed afterwards.
template <int kHeads, int kHalves, int kStride>
__device__ __forceinline__ void score_few_rows(float (&scores)[kHeads][kStride],
                                               const float* scales,
                                               uint32_t (&words)[kHalves][8],
                                               const uint32_t (&q)[kHeads / 8][8]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int m = 0; m < FewShape<kHalves>::kTiles; ++m) {
    const bool whole = 2 * m + 1 < kHalves;
    const int row = 16 * m + lane / 4;
    const float upper = scales[row];
    const float lower = whole ? scales[row + 8] : 0;
#pragma unroll
    for (int c = 0; c < kHeads / 8; ++c) {
      float d[4] = {};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        ptx::multiply_16x8(d,
                           words[2 * m][2 * k],
                           whole ? words[2 * m + 1][2 * k] : 0,
                           words[2 * m][2 * k + 1],
                           whole ? words[2 * m + 1][2 * k + 1] : 0,
                           q[c][2 * k],
                           q[c][2 * k + 1]);
      }
      const int head = 8 * c + lane % 4 * 2;
      scores[head][row] = d[0] * upper;
      scores[head + 1][row] = d[1] * upper;
      if (whole) {
        scores[head][row + 8] = d[2] * lower;
        scores[head + 1][row + 8] = d[3] * lower;
      }
    }
  }
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      words[h][k] = ptx::transpose_8x8(words[h][k]);
    }
  }
}

/// Maximum (in powers of two) and this lane's sum of weights of the warp's heads.
template <int kHeads>
struct FewState {
  float maximum[kHeads / 8];
  float sum[kHeads / 8];
};

/// Largest value of the warp by its integer order.
__device__ __forceinline__ float warp_maximum(float value) {
  const auto bits = static_cast<int32_t>(__float_as_uint(value));
  const int32_t key = bits ^ ((bits >> 31) & 0x7FFFFFFF);
  const int32_t most = __reduce_max_sync(kWholeWarp, key);
  return __uint_as_float(static_cast<uint32_t>(most ^ ((most >> 31) & 0x7FFFFFFF)));
}

template <int kHeads, int kHalves, class Shared>
__device__ __forceinline__ void weigh_few_rows(Shared& shared,
                                               const FewScales<kHalves>& rows,
                                               float scale,
                                               FewState<kHeads>& state) {
  constexpr int kPasses = FewShape<kHalves>::kPasses;
  constexpr int kRows = FewShape<kHalves>::kRows;
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int h = 0; h < kHeads / 8; ++h) {
    const int head = warp * (kHeads / 8) + h;
    float z[kPasses];
    float top = kFewNoMaximum;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int row = min(lane + 32 * pass, kRows - 1);
      z[pass] = shared.scores[0][head][row];
#pragma unroll
      for (int w = 1; w < kFewWarps; ++w) {
        z[pass] = __fadd_rn(z[pass], shared.scores[w][head][row]);
      }
      z[pass] *= scale;
      if (rows.present[pass]) {
        top = fmaxf(top, z[pass]);
      }
    }
    const float maximum = warp_maximum(top);
    state.maximum[h] = maximum;
    state.sum[h] = 0;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const float weight = rows.present[pass] ? ptx::exp2_fast(z[pass] - maximum) : 0.0F;
      state.sum[h] += weight;
      if (lane + 32 * pass < kRows) {
        shared.weights[head][lane + 32 * pass] =
            static_cast<uint16_t>(ptx::pack_bf16(weight, 0.0F));
      }
    }
  }
}

/// Output of this warp's 64 dims: unit d, heads 8 c + 2 (l % 4) and + 1; see few_join.cuh for dims.
template <int kHeads>
struct FewOutput {
  float unit[4][kHeads / 8][4];
};

template <int kHeads, int kHalves, class Shared>
__device__ __forceinline__ void accumulate_few_rows(const Shared& shared,
                                                    const uint32_t (&words)[kHalves][8],
                                                    FewOutput<kHeads>& output) {
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int m = 0; m < FewShape<kHalves>::kTiles; ++m) {
    const bool whole = 2 * m + 1 < kHalves;
    const int row = 16 * m + lane % 4 * 2;
    const auto* scales = reinterpret_cast<const uint32_t*>(&shared.weight_scales[warp][row]);
#pragma unroll
    for (int c = 0; c < kHeads / 8; ++c) {
      const auto* weights =
          reinterpret_cast<const uint32_t*>(&shared.weights[8 * c + lane / 4][row]);
      const uint32_t b0 = ptx::multiply_bf16(weights[0], scales[0]);
      const uint32_t b1 = whole ? ptx::multiply_bf16(weights[4], scales[4]) : 0;
#pragma unroll
      for (int d = 0; d < 4; ++d) {
        ptx::multiply_16x8(output.unit[d][c],
                           words[2 * m][2 * d],
                           words[2 * m][2 * d + 1],
                           whole ? words[2 * m + 1][2 * d] : 0,
                           whole ? words[2 * m + 1][2 * d + 1] : 0,
                           b0,
                           b1);
      }
    }
  }
}

}  // namespace baleen::kernels
