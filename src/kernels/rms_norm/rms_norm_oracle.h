#pragma once
// Oracle of RMSNorm: y = g * (x * (mean(x^2) + eps)^-1/2). No rounding inside; the caller rounds y.
//
//   std::vector<double> y = kernels::rms_norm_oracle(x, weight, 1e-6);   // one row

#include <cmath>
#include <span>
#include <vector>

namespace baleen::kernels {

/// weight: as long as x, or empty for all ones.
inline std::vector<double> rms_norm_oracle(std::span<const double> x,
                                           std::span<const double> weight,
                                           double eps) {
  double sum = 0.0;
  for (const double value : x) {
    sum += value * value;
  }
  const double rho = 1.0 / std::sqrt(sum / static_cast<double>(x.size()) + eps);
  std::vector<double> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    y[i] = (weight.empty() ? 1.0 : weight[i]) * (x[i] * rho);
  }
  return y;
}

}  // namespace baleen::kernels
