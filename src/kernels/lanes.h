#pragma once
// Dot products and matrix-vector products on the CPU with one fixed order of summation: element i
// goes to partial sum i mod 8, and the eight are folded as a balanced tree. The result of a row
// depends neither on the other rows nor on how many there are. No threads, no allocation.
//
//   float s = kernels::dot8(a, b, 512);
//   kernels::multiply_rows(weight, x, y, rows, cols);   // y = W x
//   kernels::sum_listed_rows(rows, weights, y, num_rows, cols);

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

namespace detail {
/// Four dots with one vector, walked together to hide the latency of the additions.
template <class T>
void dot8_of_four(
    const T* row0, const T* row1, const T* row2, const T* row3, const T* x, int64_t count, T* y) {
  Lanes<T> lanes[4];
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    lanes[0].add(row0 + i, x + i);
    lanes[1].add(row1 + i, x + i);
    lanes[2].add(row2 + i, x + i);
    lanes[3].add(row3 + i, x + i);
  }
  for (; i < count; ++i) {
    lanes[0].sum[i % kLanes] += row0[i] * x[i];
    lanes[1].sum[i % kLanes] += row1[i] * x[i];
    lanes[2].sum[i % kLanes] += row2[i] * x[i];
    lanes[3].sum[i % kLanes] += row3[i] * x[i];
  }
  for (int64_t k = 0; k < 4; ++k) {
    y[k] = lanes[k].fold();
  }
}
}  // namespace detail

/// y[r] = dot8(weight row r, x).
template <class T>
void multiply_rows(const T* weight, const T* x, T* y, int64_t rows, int64_t cols) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    const T* row = weight + r * cols;
    detail::dot8_of_four(row, row + cols, row + 2 * cols, row + 3 * cols, x, cols, y + r);
  }
  for (; r < rows; ++r) {
    y[r] = dot8(weight + r * cols, x, cols);
  }
}

/// The same for rows that lie anywhere.
template <class T>
void multiply_listed_rows(const T* const* listed, const T* x, T* y, int64_t rows, int64_t cols) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    detail::dot8_of_four(listed[r], listed[r + 1], listed[r + 2], listed[r + 3], x, cols, y + r);
  }
  for (; r < rows; ++r) {
    y[r] = dot8(listed[r], x, cols);
  }
}

/// y = sum_r weights[r] * row r, from zero, in list order for every element.
template <class T>
void sum_listed_rows(const T* const* listed, const T* weights, T* y, int64_t rows, int64_t cols) {
  constexpr int64_t kWide = 2 * kLanes;
  using Vector = typename detail::Lanes<T>::Vector;
  int64_t i = 0;
  for (; i + kWide <= cols; i += kWide) {
    Vector left = {};
    Vector right = {};
    for (int64_t r = 0; r < rows; ++r) {
      Vector a;
      Vector b;
      __builtin_memcpy(&a, listed[r] + i, sizeof(a));
      __builtin_memcpy(&b, listed[r] + i + kLanes, sizeof(b));
      left += a * weights[r];
      right += b * weights[r];
    }
    __builtin_memcpy(y + i, &left, sizeof(left));
    __builtin_memcpy(y + i + kLanes, &right, sizeof(right));
  }
  for (; i < cols; ++i) {
    T sum = 0;
    for (int64_t r = 0; r < rows; ++r) {
      sum += weights[r] * listed[r][i];
    }
    y[i] = sum;
  }
}

}  // namespace baleen::kernels
