#pragma once
// RMSNorm of rows on the CPU in one pass per row; sums in the order of lanes.h, so a row's bits
// depend on nothing but the row. No threads, no allocation; float and double.
//
//   kernels::rms_norm_cpu<float>({.x = x, .weight = g, .y = y, .rows = n, .width = 128, .eps =
//   1e-6});

#include <cstdint>

namespace baleen::kernels {

template <class T>
struct RmsNormArgs {
  const T* x = nullptr;       // [rows, width]
  const T* weight = nullptr;  // [width]; null for all ones
  T* y = nullptr;             // [rows, width], out; may be x
  int64_t rows = 0;
  int64_t width = 0;
  double eps = 0.0;
  bool rounded = false;  // y to bf16
};

template <class T>
void rms_norm_cpu(const RmsNormArgs<T>& args);

/// Without weight, and with every step of the formula rounded to bf16: the squares, their mean
/// (summed unrounded), its sum with eps, the reciprocal root and the product. `rounded` is not
/// read.
template <class T>
void rms_norm_stepwise_cpu(const RmsNormArgs<T>& args);

}  // namespace baleen::kernels
