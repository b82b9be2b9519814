#pragma once
// Quantised weight matrices as a checkpoint stores them: E4M3 with one UE8M0 scale per tile
// (128x128 in the published files, border tiles may be partial) and E2M1 with one UE8M0 scale per
// row and 32 inputs. Matrices are row-major [rows = outputs, cols = inputs]. Any thread; nothing is
// allocated.
//
//   TileShape tiles{rows, cols, 128, 128};
//   quantize_tiles(std::span<const float>(w), tiles, codes, scales);
//   dequantize_tiles(codes, scales, tiles, std::span<float>(back));

#include <cstdint>
#include <span>

#include "base/check.h"
#include "numerics/block_scale.h"

namespace baleen::numerics {

inline constexpr int64_t kFp4Group = 32;  // inputs that share one scale

struct TileShape {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t tile_rows = 128;
  int64_t tile_cols = 128;
  int64_t scale_rows() const { return ceil_div(rows, tile_rows); }
  int64_t scale_cols() const { return ceil_div(cols, tile_cols); }
};

namespace detail {
/// Calls fn(scale index, row begin, row end, col begin, col end) for every tile.
template <class TileFn>
void for_each_tile(const TileShape& shape, TileFn&& fn) {
  for (int64_t tr = 0; tr < shape.scale_rows(); ++tr) {
    for (int64_t tc = 0; tc < shape.scale_cols(); ++tc) {
      const int64_t row_begin = tr * shape.tile_rows;
      const int64_t col_begin = tc * shape.tile_cols;
      const int64_t row_end = row_begin + shape.tile_rows;
      const int64_t col_end = col_begin + shape.tile_cols;
      fn(static_cast<std::size_t>(tr * shape.scale_cols() + tc),
         row_begin,
         row_end < shape.rows ? row_end : shape.rows,
         col_begin,
         col_end < shape.cols ? col_end : shape.cols);
    }
  }
}

inline void check_tiles(const TileShape& shape,
                        std::size_t values,
                        std::size_t codes,
                        std::size_t scales) {
  BALEEN_CHECK(static_cast<int64_t>(values) == shape.rows * shape.cols && codes == values &&
                   static_cast<int64_t>(scales) == shape.scale_rows() * shape.scale_cols(),
               "rows={} cols={} values={} codes={} scales={}",
               shape.rows,
               shape.cols,
               values,
               codes,
               scales);
}

inline void check_groups(
    int64_t rows, int64_t cols, std::size_t values, std::size_t packed, std::size_t scales) {
  BALEEN_CHECK(cols % kFp4Group == 0 && static_cast<int64_t>(values) == rows * cols &&
                   static_cast<int64_t>(packed) == rows * cols / 2 &&
                   static_cast<int64_t>(scales) == rows * cols / kFp4Group,
               "rows={} cols={} values={} packed={} scales={}",
               rows,
               cols,
               values,
               packed,
               scales);
}
}  // namespace detail

template <class T>
void quantize_tiles(std::span<const T> weight,
                    const TileShape& shape,
                    std::span<uint8_t> codes,
                    std::span<uint8_t> scales) {
  detail::check_tiles(shape, weight.size(), codes.size(), scales.size());
  detail::for_each_tile(
      shape, [&](std::size_t tile, int64_t r0, int64_t r1, int64_t c0, int64_t c1) {
        T amax = T(0);
        for (int64_t r = r0; r < r1; ++r) {
          const T part = largest_magnitude(weight.subspan(
              static_cast<std::size_t>(r * shape.cols + c0), static_cast<std::size_t>(c1 - c0)));
          amax = part > amax ? part : amax;
        }
        const float scale = q8_scale(static_cast<float>(amax));
        scales[tile] = ue8m0_from_pow2(scale);
        for (int64_t r = r0; r < r1; ++r) {
          for (int64_t c = c0; c < c1; ++c) {
            const auto at = static_cast<std::size_t>(r * shape.cols + c);
            codes[at] = e4m3_from(weight[at] / static_cast<T>(scale));
          }
        }
      });
}

/// Exact in float as long as no product falls below 2^-149: scales of at least 2^-140.
template <class T>
void dequantize_tiles(std::span<const uint8_t> codes,
                      std::span<const uint8_t> scales,
                      const TileShape& shape,
                      std::span<T> weight) {
  detail::check_tiles(shape, weight.size(), codes.size(), scales.size());
  float values[256];
  for (int code = 0; code < 256; ++code) {
    values[code] = e4m3_to_float(static_cast<uint8_t>(code));
  }
  detail::for_each_tile(shape,
                        [&](std::size_t tile, int64_t r0, int64_t r1, int64_t c0, int64_t c1) {
                          const auto scale = static_cast<T>(ue8m0_to_float(scales[tile]));
                          for (int64_t r = r0; r < r1; ++r) {
                            for (int64_t c = c0; c < c1; ++c) {
                              const auto at = static_cast<std::size_t>(r * shape.cols + c);
                              weight[at] = static_cast<T>(values[codes[at]]) * scale;
                            }
                          }
                        });
}

/// packed: rows * cols / 2 bytes, even element low; scales: rows * cols / 32. cols must be a
/// multiple of 32.
template <class T>
void quantize_groups_fp4(std::span<const T> weight,
                         int64_t rows,
                         int64_t cols,
                         std::span<uint8_t> packed,
                         std::span<uint8_t> scales) {
  detail::check_groups(rows, cols, weight.size(), packed.size(), scales.size());
  for (std::size_t group = 0; group < scales.size(); ++group) {
    const std::size_t begin = group * static_cast<std::size_t>(kFp4Group);
    const std::span<const T> part = weight.subspan(begin, static_cast<std::size_t>(kFp4Group));
    const float scale = q4_scale(static_cast<float>(largest_magnitude(part)));
    scales[group] = ue8m0_from_pow2(scale);
    for (std::size_t i = 0; i < part.size(); i += 2) {
      packed[(begin + i) / 2] = pack_e2m1(e2m1_from(part[i] / static_cast<T>(scale)),
                                          e2m1_from(part[i + 1] / static_cast<T>(scale)));
    }
  }
}

template <class T>
void dequantize_groups_fp4(std::span<const uint8_t> packed,
                           std::span<const uint8_t> scales,
                           int64_t rows,
                           int64_t cols,
                           std::span<T> weight) {
  detail::check_groups(rows, cols, weight.size(), packed.size(), scales.size());
  T values[16];
  for (int code = 0; code < 16; ++code) {
    values[code] = static_cast<T>(e2m1_to_float(static_cast<uint8_t>(code)));
  }
  for (std::size_t group = 0; group < scales.size(); ++group) {
    const auto scale = static_cast<T>(ue8m0_to_float(scales[group]));
    const std::size_t begin = group * static_cast<std::size_t>(kFp4Group);
    for (std::size_t i = begin; i < begin + static_cast<std::size_t>(kFp4Group); i += 2) {
      weight[i] = values[low_nibble(packed[i / 2])] * scale;
      weight[i + 1] = values[high_nibble(packed[i / 2])] * scale;
    }
  }
}

/// FP4 to FP8 without loss: each 128x128 tile takes S = (largest of its group scales) / 2^6 and
/// every element becomes e4m3(value * group scale / S). Returns false, with the outputs
/// unspecified, when the group scales of a tile span more than 2^14, or when S would leave the
/// range of UE8M0.
inline bool fp4_to_fp8(std::span<const uint8_t> packed,
                       std::span<const uint8_t> group_scales,
                       const TileShape& shape,
                       std::span<uint8_t> codes,
                       std::span<uint8_t> tile_scales) {
  detail::check_groups(shape.rows, shape.cols, codes.size(), packed.size(), group_scales.size());
  detail::check_tiles(shape, codes.size(), codes.size(), tile_scales.size());
  BALEEN_CHECK(shape.tile_cols % kFp4Group == 0, "tile_cols={}", shape.tile_cols);
  const int64_t groups_per_row = shape.cols / kFp4Group;
  bool exact = true;
  detail::for_each_tile(
      shape, [&](std::size_t tile, int64_t r0, int64_t r1, int64_t c0, int64_t c1) {
        int highest = 0;
        int lowest = 255;
        for (int64_t r = r0; r < r1; ++r) {
          for (int64_t g = c0 / kFp4Group; g < ceil_div(c1, kFp4Group); ++g) {
            const int exponent = group_scales[static_cast<std::size_t>(r * groups_per_row + g)];
            highest = exponent > highest ? exponent : highest;
            lowest = exponent < lowest ? exponent : lowest;
          }
        }
        if (highest - lowest > 14 || highest < 6 || highest == 255) {
          exact = false;
          return;
        }
        tile_scales[tile] = static_cast<uint8_t>(highest - 6);
        for (int64_t r = r0; r < r1; ++r) {
          for (int64_t c = c0; c < c1; ++c) {
            const auto at = static_cast<std::size_t>(r * shape.cols + c);
            const int exponent =
                group_scales[static_cast<std::size_t>(r * groups_per_row + c / kFp4Group)];
            const uint8_t pair = packed[at / 2];
            const float value = e2m1_to_float(at % 2 == 0 ? low_nibble(pair) : high_nibble(pair));
            codes[at] = e4m3_from_float(std::ldexp(value, exponent - (highest - 6)));
          }
        }
      });
  return exact;
}

}  // namespace baleen::numerics
