#pragma once
// Products of many rows with one weight on the CPU: every output is dot8 of lanes.h of its row and
// its weight row, so its bits depend neither on the number of rows nor on their cut. No threads, no
// allocation; float and double. Oracle: linear_oracle.h.
//
//   kernels::linear_cpu<float>({.x = x, .weight = w, .y = y, .rows = 7, .outputs = 64, .cols = 128,
//                               .x_stride = 128, .y_stride = 64});

#include <cstdint>

namespace baleen::kernels {

template <class T>
struct LinearCpuArgs {
  const T* x = nullptr;       // [rows, cols], rows x_stride apart
  const T* weight = nullptr;  // [outputs, cols], contiguous
  T* y = nullptr;             // [rows, outputs], rows y_stride apart, out; not x
  int64_t rows = 0;
  int64_t outputs = 0;
  int64_t cols = 0;
  int64_t x_stride = 0;  // elements
  int64_t y_stride = 0;  // elements
};

template <class T>
void linear_cpu(const LinearCpuArgs<T>& args);

}  // namespace baleen::kernels
