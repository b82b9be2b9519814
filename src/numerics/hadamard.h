#pragma once
// The Walsh-Hadamard rotation in Sylvester order, y = H x / sqrt(width). It is its own inverse. In
// place, in the arithmetic of the storage type; butterflies run from distance 1 upwards, so the
// summation order is fixed. Any thread.
//
//   hadamard(std::span<float>(index_key));   // width must be a power of two

#include <cmath>
#include <span>

#include "base/check.h"

namespace baleen::numerics {

template <class T>
void hadamard(std::span<T> row) {
  const std::size_t width = row.size();
  BALEEN_CHECK(width > 0 && (width & (width - 1)) == 0, "width={}", width);
  for (std::size_t distance = 1; distance < width; distance *= 2) {
    for (std::size_t begin = 0; begin < width; begin += 2 * distance) {
      for (std::size_t i = begin; i < begin + distance; ++i) {
        const T left = row[i];
        const T right = row[i + distance];
        row[i] = left + right;
        row[i + distance] = left - right;
      }
    }
  }
  const T factor = static_cast<T>(1.0 / std::sqrt(static_cast<double>(width)));
  for (T& value : row) {
    value *= factor;
  }
}

}  // namespace baleen::numerics
