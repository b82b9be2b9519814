#pragma once
// Attention of one query over a list of rows on the CPU: the decode step. All heads share the rows,
// each row is key and value at once. No threads, no allocation; float and double.
//
//   kernels::sparse_attention_cpu<float>({.q = q, .rows = rows, .num_rows = 131, .sink = sink, .o =
//   o,
//                                         .weights = scratch, .heads = 8, .width = 64});
//
// Rows are visited in list order. Dots in the order of lanes.h; the maximum is that of the whole
// list; e_s rounds to bf16 in the numerator and o at the end when `rounded`. Oracle:
// sparse_attention_oracle.h.

#include <cstdint>

namespace baleen::kernels {

template <class T>
struct SparseAttentionArgs {
  const T* q = nullptr;  // [heads, width]
  const T* const* rows =
      nullptr;              // num_rows pointers to [width], window rows oldest first, then entries
  int64_t num_rows = 0;     // at least 1
  const T* sink = nullptr;  // [heads]
  T* o = nullptr;           // [heads, width], out
  T* weights = nullptr;     // scratch, [num_rows]
  int64_t heads = 0;
  int64_t width = 0;
  bool rounded = false;
};

template <class T>
void sparse_attention_cpu(const SparseAttentionArgs<T>& args);

}  // namespace baleen::kernels
