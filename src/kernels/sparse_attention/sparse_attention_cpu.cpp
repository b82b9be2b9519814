#include "kernels/sparse_attention/sparse_attention_cpu.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/lanes.h"
#include "numerics/bfloat16.h"

namespace baleen::kernels {

template <class T>
void sparse_attention_cpu(const SparseAttentionArgs<T>& args) {
  BALEEN_CHECK(args.num_rows > 0, "a query sees at least its own row");
  const T scale = static_cast<T>(1.0 / std::sqrt(static_cast<double>(args.width)));
  T* weights = args.weights;
  for (int64_t h = 0; h < args.heads; ++h) {
    const T* q = args.q + h * args.width;
    multiply_listed_rows(args.rows, q, weights, args.num_rows, args.width);
    T maximum = 0;
    for (int64_t s = 0; s < args.num_rows; ++s) {
      weights[s] *= scale;
      maximum = s == 0 ? weights[s] : std::max(maximum, weights[s]);
    }
    T denominator = 0;
    for (int64_t s = 0; s < args.num_rows; ++s) {
      const T e = std::exp(weights[s] - maximum);
      denominator += e;
      weights[s] = args.rounded ? numerics::round_to_bf16(e) : e;
    }
    denominator += std::exp(args.sink[h] - maximum);
    T* o = args.o + h * args.width;
    sum_listed_rows(args.rows, weights, o, args.num_rows, args.width);
    for (int64_t i = 0; i < args.width; ++i) {
      o[i] /= denominator;
      o[i] = args.rounded ? numerics::round_to_bf16(o[i]) : o[i];
    }
  }
}

template void sparse_attention_cpu(const SparseAttentionArgs<float>&);
template void sparse_attention_cpu(const SparseAttentionArgs<double>&);

}  // namespace baleen::kernels
