#pragma once
// Dot products and matrix-vector products on the CPU with one fixed order of summation: element i
// goes to partial sum i mod 8, and the eight are folded as a balanced tree. The result of a row
// depends neither on the other rows nor on how many there are. No threads, no allocation.
//
//   float s = kernels::dot8(a, b, 512);
//   kernels::multiply_rows(weight, x, y, rows, cols);   // y = W x

#include <cstdint>

namespace baleen::kernels {

inline constexpr int64_t kLanes = 8;

namespace detail {
template <class T>
struct Lanes {
  typedef T Vector __attribute__((vector_size(kLanes * sizeof(T))));
  Vector sum = {};

  void add(const T* a, const T* b) {
    Vector left;
    Vector right;
    __builtin_memcpy(&left, a, sizeof(left));
    __builtin_memcpy(&right, b, sizeof(right));
    sum += left * right;
  }
  T fold() const {
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
  }
};
}  // namespace detail

template <class T>
T dot8(const T* a, const T* b, int64_t count) {
  detail::Lanes<T> lanes;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    lanes.add(a + i, b + i);
  }
  for (; i < count; ++i) {
    lanes.sum[i % kLanes] += a[i] * b[i];
  }
  return lanes.fold();
}

/// y[r] = dot8(weight row r, x). Four rows are walked together to hide the latency of the
/// additions.
template <class T>
void multiply_rows(const T* weight, const T* x, T* y, int64_t rows, int64_t cols) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    detail::Lanes<T> lanes[4];
    const T* row = weight + r * cols;
    int64_t i = 0;
    for (; i + kLanes <= cols; i += kLanes) {
      lanes[0].add(row + i, x + i);
      lanes[1].add(row + cols + i, x + i);
      lanes[2].add(row + 2 * cols + i, x + i);
      lanes[3].add(row + 3 * cols + i, x + i);
    }
    for (; i < cols; ++i) {
      for (int64_t k = 0; k < 4; ++k) {
        lanes[k].sum[i % kLanes] += row[k * cols + i] * x[i];
      }
    }
    for (int64_t k = 0; k < 4; ++k) {
      y[r + k] = lanes[k].fold();
    }
  }
  for (; r < rows; ++r) {
    y[r] = dot8(weight + r * cols, x, cols);
  }
}

}  // namespace baleen::kernels
