#pragma once
// Oracle of clamped SwiGLU experts for one token. Rounding points with `rounded`: gate, up, hidden
// vector (after the route weight when it comes before w2) and expert output; inputs of the three
// products with `quantised`. The sum over slots runs in ascending expert id and is not rounded.
//
//   std::vector<double> y = kernels::expert_oracle(x, w1, w3, w2, route_weight, options);

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels/linear/linear_oracle.h"

namespace baleen::kernels {

struct ExpertOracleOptions {
  double limit = std::numeric_limits<double>::infinity();
  bool weight_before_w2 = true;
  LinearRounding rounding = {};
};

inline double swiglu_oracle(double gate, double up, double limit) {
  const double g = std::min(gate, limit);
  const double u = std::clamp(up, -limit, limit);
  return g / (1.0 + std::exp(-g)) * u;
}

inline std::vector<double> expert_oracle(std::span<const double> x,
                                         std::span<const double> w1,
                                         std::span<const double> w3,
                                         std::span<const double> w2,
                                         double route_weight,
                                         const ExpertOracleOptions& options) {
  const std::vector<double> gate = linear_oracle(x, w1, options.rounding);
  const std::vector<double> up = linear_oracle(x, w3, options.rounding);
  std::vector<double> hidden(gate.size());
  for (std::size_t i = 0; i < hidden.size(); ++i) {
    const double a = swiglu_oracle(gate[i], up[i], options.limit);
    hidden[i] = options.weight_before_w2 ? route_weight * a : a;
    hidden[i] = options.rounding.rounded ? numerics::round_to_bf16(hidden[i]) : hidden[i];
  }
  std::vector<double> y = linear_oracle(hidden, w2, options.rounding);
  for (double& value : y) {
    value *= options.weight_before_w2 ? 1.0 : route_weight;
  }
  return y;
}

}  // namespace baleen::kernels
