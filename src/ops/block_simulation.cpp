#include "ops/block_simulation.h"

#include <vector>

#include <ATen/ATen.h>

namespace baleen::ops {
namespace {

constexpr double kE4m3Max = 448.0;
constexpr double kE4m3MinAmax = 1e-4;
constexpr double kE2m1Max = 6.0;
constexpr double kE2m1MinAmax = 0x1.8p-124;  // 6 * 2^-126

/// 2^ceil(log2(v)) of positive normal floats, from the bits: the carry out of the mantissa field
/// adds one to the exponent exactly when the mantissa is not zero.
at::Tensor power_of_two_up(const at::Tensor& v) {
  return v.view(at::kInt).add(0x007FFFFF).bitwise_and(0x7F800000).view(at::kFloat);
}

at::Tensor scale_of(const at::Tensor& amax, double min_amax, double format_max) {
  return power_of_two_up(amax.clamp_min(min_amax).mul(1.0 / format_max));
}

at::Tensor nearest_e4m3(const at::Tensor& v) {
  return v.clamp(-kE4m3Max, kE4m3Max).to(at::kFloat8_e4m3fn).to(at::kFloat);
}

/// Steps of 1/2 below 2, of 1 below 4, of 2 above; round() takes ties to even, as the code does.
at::Tensor nearest_e2m1(const at::Tensor& v) {
  const at::Tensor clamped = v.clamp(-kE2m1Max, kE2m1Max);
  const at::Tensor exponent_bits =
      clamped.abs().clamp_min(1.0).view(at::kInt).bitwise_and(0x7F800000);
  const at::Tensor step = exponent_bits.view(at::kFloat).mul(0.5);
  return clamped.div(step).round().mul(step);
}

using Nearest = at::Tensor (*)(const at::Tensor&);

struct TileFormat {
  Nearest nearest;
  double min_amax;
  double format_max;
};

constexpr TileFormat kFp8Tile{nearest_e4m3, kE4m3MinAmax, kE4m3Max};
constexpr TileFormat kFp4Tile{nearest_e2m1, kE2m1MinAmax, kE2m1Max};

/// One scale per `tile_rows` x `tile_cols` tile of the last two dims of a float tensor.
at::Tensor simulate_tiles(const at::Tensor& x,
                          int64_t tile_rows,
                          int64_t tile_cols,
                          const TileFormat& format) {
  const int64_t rows = x.size(-2);
  const int64_t cols = x.size(-1);
  if (x.numel() == 0) {
    return x;
  }
  const int64_t row_pad = (tile_rows - rows % tile_rows) % tile_rows;
  const int64_t col_pad = (tile_cols - cols % tile_cols) % tile_cols;
  const bool padded = row_pad + col_pad > 0;
  const at::Tensor whole = padded ? at::constant_pad_nd(x, {0, col_pad, 0, row_pad}) : x;
  const at::Tensor tiles = whole.reshape(
      {-1, (rows + row_pad) / tile_rows, tile_rows, (cols + col_pad) / tile_cols, tile_cols});
  const at::Tensor scale =
      scale_of(tiles.abs().amax({2, 4}, /*keepdim=*/true), format.min_amax, format.format_max);
  at::Tensor result = format.nearest(tiles.div(scale)).mul(scale);
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[sizes.size() - 2] += row_pad;
  sizes[sizes.size() - 1] += col_pad;
  result = result.view(sizes);
  return padded ? result.narrow(-2, 0, rows).narrow(-1, 0, cols).contiguous() : result;
}

}  // namespace

at::Tensor block_scale_fp8(const at::Tensor& amax) {
  return scale_of(amax, kE4m3MinAmax, kE4m3Max);
}

at::Tensor block_scale_fp4(const at::Tensor& amax) {
  return scale_of(amax, kE2m1MinAmax, kE2m1Max);
}

at::Tensor simulate_tiles_fp8(const at::Tensor& x, int64_t tile_rows, int64_t tile_cols) {
  return simulate_tiles(x, tile_rows, tile_cols, kFp8Tile);
}

at::Tensor simulate_tiles_fp4(const at::Tensor& x, int64_t tile_rows, int64_t tile_cols) {
  return simulate_tiles(x, tile_rows, tile_cols, kFp4Tile);
}

}  // namespace baleen::ops
