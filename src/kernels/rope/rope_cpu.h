#pragma once
// Rotation of the last dims of rows on the CPU, copy included. No threads, no allocation; float and
// double. Each element is two products and one sum, each rounded, so ATen's complex product gives
// the same up to one unit in the last place.
//
//   kernels::rotate_cpu<float>({.x = x, .cis = cis, .y = y, .rows = heads, .width = 64, .pairs =
//   16});

#include <cstdint>

namespace baleen::kernels {

template <class T>
struct RotateArgs {
  const T* x = nullptr;    // [rows, width]
  const T* cis = nullptr;  // [pairs, 2]: cosine, sine; of the one position of these rows
  T* y = nullptr;          // [rows, width], out; may be x
  int64_t rows = 0;
  int64_t width = 0;
  int64_t pairs = 0;  // adjacent pairs at the end of a row: 2 * pairs <= width
  bool inverse = false;
  bool rounded = false;  // y to bf16, the dims that are not rotated included
};

template <class T>
void rotate_cpu(const RotateArgs<T>& args);

}  // namespace baleen::kernels
