#pragma once
// Oracle of the Sinkhorn normalisation of one n x n matrix (row-major): row softmax plus eps, a
// column step, then iters - 1 times a row step and a column step; each step divides by (sum + eps).
//
//   std::vector<double> comb = kernels::sinkhorn_oracle(logits, 4, 1e-6, 20);

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

namespace baleen::kernels {

inline std::vector<double> sinkhorn_oracle(std::span<const double> logits,
                                           std::size_t n,
                                           double eps,
                                           int iters) {
  std::vector<double> c(n * n);
  const auto rows = [&](double add) {
    for (std::size_t j = 0; j < n; ++j) {
      double sum = add;
      for (std::size_t k = 0; k < n; ++k) {
        sum += c[j * n + k];
      }
      for (std::size_t k = 0; k < n; ++k) {
        c[j * n + k] /= sum;
      }
    }
  };
  const auto columns = [&] {
    for (std::size_t k = 0; k < n; ++k) {
      double sum = eps;
      for (std::size_t j = 0; j < n; ++j) {
        sum += c[j * n + k];
      }
      for (std::size_t j = 0; j < n; ++j) {
        c[j * n + k] /= sum;
      }
    }
  };
  for (std::size_t j = 0; j < n; ++j) {
    const auto row = logits.subspan(j * n, n);
    const double maximum = *std::max_element(row.begin(), row.end());
    for (std::size_t k = 0; k < n; ++k) {
      c[j * n + k] = std::exp(row[k] - maximum);
    }
  }
  rows(0.0);
  for (double& value : c) {
    value += eps;
  }
  columns();
  for (int iter = 1; iter < iters; ++iter) {
    rows(eps);
    columns();
  }
  return c;
}

}  // namespace baleen::kernels
