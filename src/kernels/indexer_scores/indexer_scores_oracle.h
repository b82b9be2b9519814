#pragma once
// Oracle of the index score of one query and one entry: sum_h a_h * max(0, <q_h, k>). With
// `rounded` the dot, its product with a_h and the head sum round to bf16; sums inside are not
// rounded.
//
//   double s = kernels::indexer_score_oracle(q, k, a, /*rounded=*/true);   // q [nI, dI], k [dI], a
//   [nI]

#include <cstddef>
#include <span>

#include "numerics/bfloat16.h"

namespace baleen::kernels {

inline double indexer_score_oracle(std::span<const double> q,
                                   std::span<const double> k,
                                   std::span<const double> a,
                                   bool rounded) {
  const auto store = [rounded](double v) { return rounded ? numerics::round_to_bf16(v) : v; };
  double score = 0.0;
  for (std::size_t h = 0; h < a.size(); ++h) {
    double dot = 0.0;
    for (std::size_t i = 0; i < k.size(); ++i) {
      dot += q[h * k.size() + i] * k[i];
    }
    dot = store(dot);
    score += store(a[h] * (dot > 0.0 ? dot : 0.0));
  }
  return store(score);
}

}  // namespace baleen::kernels
