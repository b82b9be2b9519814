#pragma once
// Oracle of attention for one query head over a list of visible rows (each both key and value),
// with a sink logit that is neither scaled nor part of the maximum. With `rounded` e_s = exp(z_s -
// M) rounds to bf16 in the numerator only, M being the maximum of the whole list. The result is not
// rounded.
//
//   std::vector<double> o = kernels::sparse_attention_oracle(q, rows, sink, false);

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "numerics/bfloat16.h"

namespace baleen::kernels {

inline std::vector<double> sparse_attention_oracle(std::span<const double> q,
                                                   const std::vector<std::span<const double>>& rows,
                                                   double sink,
                                                   bool rounded) {
  std::vector<double> z(rows.size());
  double maximum = -std::numeric_limits<double>::infinity();
  for (std::size_t s = 0; s < rows.size(); ++s) {
    for (std::size_t i = 0; i < q.size(); ++i) {
      z[s] += q[i] * rows[s][i];
    }
    z[s] /= std::sqrt(static_cast<double>(q.size()));
    maximum = std::max(maximum, z[s]);
  }
  double denominator = std::exp(sink - maximum);
  std::vector<double> o(q.size());
  for (std::size_t s = 0; s < rows.size(); ++s) {
    const double e = std::exp(z[s] - maximum);
    denominator += e;
    for (std::size_t i = 0; i < q.size(); ++i) {
      o[i] += (rounded ? numerics::round_to_bf16(e) : e) * rows[s][i];
    }
  }
  for (double& value : o) {
    value /= denominator;
  }
  return o;
}

}  // namespace baleen::kernels
