#pragma once
// Block quantisation along the last axis of activations: Q8 (codes and scales), and its simulations
// S8 and S4 that give back values in the storage type. The scale of a block is a power of two found
// in float32, for double storage too, so every storage type takes the same scale. The last block of
// a row may be short. NaN elements do not take part in the maximum; they become NaN in S8.
//
//   simulate_s8(std::span<float>(row), 64);                 // KV entries
//   quantize_q8(std::span<const float>(row), 128, codes, scales);
//
// Any thread; nothing is allocated. Source of the rules: model contract, number formats.

#include <cmath>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "numerics/bfloat16.h"
#include "numerics/float4.h"
#include "numerics/float8.h"

namespace baleen::numerics {

template <class T>
T largest_magnitude(std::span<const T> values) {
  T largest = T(0);
  for (const T value : values) {
    const T magnitude = value < T(0) ? -value : value;
    largest = magnitude > largest ? magnitude : largest;  // false for NaN
  }
  return largest;
}

/// Scale of a block with the given largest magnitude; at least 2^-22.
BALEEN_HOST_DEVICE inline float q8_scale(float amax) {
  return pow2up((amax > 1e-4F ? amax : 1e-4F) * kInverse448);
}

/// Scale of an E2M1 group; at least 2^-126.
BALEEN_HOST_DEVICE inline float q4_scale(float amax) {
  return pow2up((amax > kE2m1LeastAmax ? amax : kE2m1LeastAmax) * kInverse6);
}

inline int64_t ceil_div(int64_t value, int64_t divisor) {
  return (value + divisor - 1) / divisor;
}

namespace detail {
template <class T, class BlockFn>
void for_each_block(std::span<T> row, int64_t block, BlockFn&& fn) {
  BALEEN_CHECK(block > 0, "block={}", block);
  const auto width = static_cast<int64_t>(row.size());
  for (int64_t begin = 0; begin < width; begin += block) {
    const int64_t length = begin + block < width ? block : width - begin;
    fn(begin / block,
       begin,
       row.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(length)));
  }
}
}  // namespace detail

/// Q8: codes[i] = e4m3(clamp(x_i / s)), scales[b] = the UE8M0 code of block b.
/// codes: row.size(); scales: ceil(row.size() / block).
template <class T>
void quantize_q8(std::span<const T> row,
                 int64_t block,
                 std::span<uint8_t> codes,
                 std::span<uint8_t> scales) {
  BALEEN_CHECK(codes.size() == row.size(), "codes={} row={}", codes.size(), row.size());
  BALEEN_CHECK(
      static_cast<int64_t>(scales.size()) == ceil_div(static_cast<int64_t>(row.size()), block),
      "scales={} row={} block={}",
      scales.size(),
      row.size(),
      block);
  detail::for_each_block(row, block, [&](int64_t index, int64_t begin, std::span<const T> part) {
    const float scale = q8_scale(static_cast<float>(largest_magnitude(part)));
    scales[static_cast<std::size_t>(index)] = ue8m0_from_pow2(scale);
    for (std::size_t i = 0; i < part.size(); ++i) {
      codes[static_cast<std::size_t>(begin) + i] = e4m3_from(part[i] / static_cast<T>(scale));
    }
  });
}

/// S8: each value becomes bf16(e4m3(clamp(x / s)) * s), in place.
template <class T>
void simulate_s8(std::span<T> row, int64_t block) {
  detail::for_each_block(row, block, [](int64_t, int64_t, std::span<T> part) {
    const float scale = q8_scale(static_cast<float>(largest_magnitude(std::span<const T>(part))));
    for (T& value : part) {
      const float rounded = e4m3_to_float(e4m3_from(value / static_cast<T>(scale)));
      value = static_cast<T>(round_to_bf16(rounded * scale));
    }
  });
}

/// S4: each value becomes bf16(e2m1(clamp(x / s)) * s), in place; groups of 32 in the model.
template <class T>
void simulate_s4(std::span<T> row, int64_t group) {
  detail::for_each_block(row, group, [](int64_t, int64_t, std::span<T> part) {
    const float scale = q4_scale(static_cast<float>(largest_magnitude(std::span<const T>(part))));
    for (T& value : part) {
      const float rounded = e2m1_to_float(e2m1_from(value / static_cast<T>(scale)));
      value = static_cast<T>(round_to_bf16(rounded * scale));
    }
  });
}

}  // namespace baleen::numerics
