#pragma once
// Oracle of the hyper-connection of one token with n streams of width H (streams row-major [n, H]).
// Nothing is rounded in the plain forms; the reference program stores y, out and h as bf16. The
// stages of the fused operator round where it does.
//
//   HcOracle mix = kernels::hc_pre_oracle(streams, n, fn, base, scale, eps, hc_eps, 20);
//   std::vector<double> out = kernels::hc_post_oracle(y, streams, mix.post, mix.comb);

#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include "kernels/rms_norm/rms_norm_oracle.h"
#include "kernels/sinkhorn/sinkhorn_oracle.h"
#include "numerics/bfloat16.h"

namespace baleen::kernels {

struct HcOracle {
  std::vector<double> y, post, comb;
};

/// m_i = rho * <fn_i, x>, over all fn.size() / x.size() rows.
inline std::vector<double> hc_mix_oracle(std::span<const double> x,
                                         std::span<const double> fn,
                                         double eps) {
  double square = 0.0;
  for (const double value : x) {
    square += value * value;
  }
  const double rho = 1.0 / std::sqrt(square / static_cast<double>(x.size()) + eps);
  std::vector<double> m(fn.size() / x.size());
  for (std::size_t i = 0; i < m.size(); ++i) {
    for (std::size_t c = 0; c < x.size(); ++c) {
      m[i] += fn[i * x.size() + c] * x[c];
    }
    m[i] *= rho;
  }
  return m;
}

/// sum_j (sigmoid(m_j * scale + base_j) + hc_eps) * x_j: the input of a sub-layer and the head
/// collapse.
inline std::vector<double> hc_collapse_oracle(std::span<const double> x,
                                              std::size_t n,
                                              std::span<const double> m,
                                              std::span<const double> base,
                                              double scale,
                                              double hc_eps) {
  const std::size_t width = x.size() / n;
  std::vector<double> y(width);
  for (std::size_t j = 0; j < n; ++j) {
    const double pre = 1.0 / (1.0 + std::exp(-(m[j] * scale + base[j]))) + hc_eps;
    for (std::size_t i = 0; i < width; ++i) {
      y[i] += pre * x[j * width + i];
    }
  }
  return y;
}

inline HcOracle hc_pre_oracle(std::span<const double> x,
                              std::size_t n,
                              std::span<const double> fn,
                              std::span<const double> base,
                              std::span<const double> scale,
                              double eps,
                              double hc_eps,
                              int iters) {
  const std::vector<double> m = hc_mix_oracle(x, fn, eps);
  HcOracle out;
  out.y = hc_collapse_oracle(x, n, m, base, scale[0], hc_eps);
  for (std::size_t j = n; j < 2 * n; ++j) {
    out.post.push_back(2.0 / (1.0 + std::exp(-(m[j] * scale[1] + base[j]))));
  }
  std::vector<double> logits;
  for (std::size_t j = 2 * n; j < m.size(); ++j) {
    logits.push_back(m[j] * scale[2] + base[j]);
  }
  out.comb = sinkhorn_oracle(logits, n, hc_eps, iters);
  return out;
}

/// out_k = post_k * y + sum_j comb[j, k] * x_j.
inline std::vector<double> hc_post_oracle(std::span<const double> y,
                                          std::span<const double> x,
                                          std::span<const double> post,
                                          std::span<const double> comb) {
  const std::size_t n = post.size();
  std::vector<double> out(x.size());
  for (std::size_t k = 0; k < n; ++k) {
    for (std::size_t i = 0; i < y.size(); ++i) {
      double sum = post[k] * y[i];
      for (std::size_t j = 0; j < n; ++j) {
        sum += comb[j * n + k] * x[j * y.size() + i];
      }
      out[k * y.size() + i] = sum;
    }
  }
  return out;
}

/// One step of the fused operator on one token, with its rounding points: the sub-layer's output
/// (the sum of its partial outputs), new streams, u and y are bf16. Each stage is computed from
/// given values, so that a test can feed it what the stage before really gave.
inline std::vector<double> hc_fused_streams_oracle(std::span<const std::vector<double>> parts,
                                                   std::span<const double> residual,
                                                   std::span<const double> post,
                                                   std::span<const double> comb) {
  std::vector<double> y(parts.empty() ? 0 : parts[0].size());
  for (std::size_t i = 0; i < y.size(); ++i) {
    for (const std::vector<double>& part : parts) {
      y[i] += part[i];
    }
    y[i] = numerics::round_to_bf16(y[i]);
  }
  std::vector<double> streams;
  if (residual.empty()) {  // first layer
    for (int k = 0; k < 4; ++k) {
      streams.insert(streams.end(), y.begin(), y.end());
    }
    return streams;
  }
  if (post.empty()) {
    return {residual.begin(), residual.end()};
  }
  streams = hc_post_oracle(y, residual, post, comb);
  for (double& value : streams) {
    value = numerics::round_to_bf16(value);
  }
  return streams;
}

/// y of the fused operator from u, both bf16.
inline std::vector<double> hc_fused_norm_oracle(std::span<const double> u,
                                                std::span<const double> weight,
                                                double eps) {
  std::vector<double> y = rms_norm_oracle(u, weight, eps);
  for (double& value : y) {
    value = numerics::round_to_bf16(value);
  }
  return y;
}

}  // namespace baleen::kernels
