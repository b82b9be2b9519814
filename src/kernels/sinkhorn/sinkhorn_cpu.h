#pragma once
// Sinkhorn normalisation of many small matrices on the CPU, forward and backward, in float or
// double. One pass per matrix with everything in registers and first-level cache; no threads of its
// own: the caller splits `count` over threads. Allocates only when a matrix history outgrows the
// stack buffer.
//
//   kernels::sinkhorn_cpu(logits, comb, {.count = tokens, .width = 4, .iters = 20, .eps = 1e-6});
//
// Step 1: row softmax (maximum subtracted) plus eps. Step 2: columns divided by (sum + eps). Then
// iters - 1 times rows, columns. Sums run in ascending index order. Oracle: sinkhorn_oracle.h.

#include <cstdint>

namespace baleen::kernels {

struct SinkhornShape {
  int64_t count = 0;  // matrices
  int64_t width = 0;  // rows and columns of a matrix, at most kSinkhornMaxWidth
  int64_t iters = 0;  // column steps, at least 1
  double eps = 0.0;
};

inline constexpr int64_t kSinkhornMaxWidth = 16;

/// logits, comb [count, width, width], row-major; may be the same array.
template <class T>
void sinkhorn_cpu(const T* logits, T* comb, const SinkhornShape& shape);

/// dlogits [count, width, width] from dcomb; intermediates are recomputed from the logits.
template <class T>
void sinkhorn_backward_cpu(const T* logits, const T* dcomb, T* dlogits, const SinkhornShape& shape);

}  // namespace baleen::kernels
