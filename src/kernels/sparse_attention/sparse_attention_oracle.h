#pragma once
// Oracle of attention for one query head over a list of visible rows (each both key and value),
// with a sink logit that is neither scaled nor part of the maximum. With `rounded` e_s = exp(z_s -
// M) rounds to bf16 in the numerator only, M being the maximum of the whole list. The result is not
// rounded.
//
//   std::vector<double> o = kernels::sparse_attention_oracle(q, rows, sink, false);
//   AttentionOutcome all = kernels::sparse_attention_outcome(q, rows, sink);   // with log-sums

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

struct AttentionOutcome {
  std::vector<double> o;
  double lse = 0;            // log sum exp(z), without the sink
  double lse_with_sink = 0;  // log(sum exp(z) + exp(sink))
  std::vector<double>
      spread;                // sum_s p_s |row_s|: what a relative error of the weights scales with
  double largest_score = 0;  // max |z|: what the error of a score scales with
};

/// Unrounded output and log-sums, with what the edges mean: no rows give o = 0 and lse = -inf; a
/// sink of +inf takes all weight, one of -inf none.
inline AttentionOutcome sparse_attention_outcome(std::span<const double> q,
                                                 const std::vector<std::span<const double>>& rows,
                                                 double sink) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  AttentionOutcome outcome{
      std::vector<double>(q.size()), -kInfinity, sink, std::vector<double>(q.size()), 0};
  if (rows.empty()) {
    return outcome;
  }
  double maximum = -kInfinity;
  std::vector<double> z;
  for (const std::span<const double> row : rows) {
    double dot = 0;
    for (std::size_t i = 0; i < q.size(); ++i) {
      dot += q[i] * row[i];
    }
    z.push_back(dot / std::sqrt(static_cast<double>(q.size())));
    maximum = std::max(maximum, z.back());
    outcome.largest_score = std::max(outcome.largest_score, std::abs(z.back()));
  }
  double sum = 0;
  for (const double score : z) {
    sum += std::exp(score - maximum);
  }
  outcome.lse = maximum + std::log(sum);
  if (sink == kInfinity) {
    return outcome;
  }
  const double top = std::max(outcome.lse, sink);
  outcome.lse_with_sink = top + std::log(std::exp(outcome.lse - top) + std::exp(sink - top));
  for (std::size_t s = 0; s < rows.size(); ++s) {
    const double weight = std::exp(z[s] - outcome.lse_with_sink);
    for (std::size_t i = 0; i < q.size(); ++i) {
      outcome.o[i] += weight * rows[s][i];
      outcome.spread[i] += weight * std::abs(rows[s][i]);
    }
  }
  return outcome;
}

}  // namespace baleen::kernels
