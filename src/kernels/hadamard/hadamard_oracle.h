#pragma once
// Oracle of the Hadamard transform, by its definition: y_i = N^-1/2 sum_j (-1)^popcount(i & j) x_j.
//
//   std::vector<double> y = kernels::hadamard_oracle(x);

#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace baleen::kernels {

inline std::vector<double> hadamard_oracle(std::span<const double> x) {
  std::vector<double> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    double sum = 0.0;
    for (std::size_t j = 0; j < x.size(); ++j) {
      sum += std::popcount(i & j) % 2 == 0 ? x[j] : -x[j];
    }
    y[i] = sum / std::sqrt(static_cast<double>(x.size()));
  }
  return y;
}

}  // namespace baleen::kernels
