#pragma once
// Oracle of the router for one token: score sqrt(softplus(z)), choice by score plus bias (best
// first, ties to the lower expert) or given, weights scale * s / sum of the chosen s; scale / k
// each when all chosen scores are 0.
//
//   std::vector<double> w = kernels::route_weights_oracle(scores, experts, 1.5, 0.0);

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/indexer_topk/indexer_topk_oracle.h"

namespace baleen::kernels {

inline double router_score_oracle(double z) {
  return std::sqrt(z > 20.0 ? z : std::log1p(std::exp(z)));
}

inline std::vector<int64_t> route_oracle(std::span<const double> scores,
                                         std::span<const double> bias,
                                         std::size_t k) {
  std::vector<double> ranked(scores.begin(), scores.end());
  for (std::size_t e = 0; e < bias.size(); ++e) {
    ranked[e] += bias[e];
  }
  return topk_oracle(ranked, ranked.size(), k);
}

inline std::vector<double> route_weights_oracle(std::span<const double> scores,
                                                std::span<const int64_t> experts,
                                                double scale,
                                                double eps) {
  double sum = 0.0;
  for (const int64_t e : experts) {
    sum += scores[static_cast<std::size_t>(e)];
  }
  std::vector<double> weights;
  for (const int64_t e : experts) {
    weights.push_back(sum == 0.0 ? scale / static_cast<double>(experts.size())
                                 : scale * scores[static_cast<std::size_t>(e)] / (sum + eps));
  }
  return weights;
}

}  // namespace baleen::kernels
