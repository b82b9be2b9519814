#pragma once
// What sample_token means, by sorting everything. Rounding points: x float32, all else double.
// Tie rule everywhere: the lower id first.
//
//   SamplingOracle oracle = sampling_oracle(logits, params, counts);

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/sampling/gumbel_noise.h"
#include "kernels/sampling/sampling.h"

namespace baleen::kernels {

struct SamplingOracle {
  std::vector<double> logprobs;  // by id, before truncation
  std::vector<double> law;       // by id: probability of being drawn
  int32_t drawn = -1;
};

/// Every logit is finite or -inf and at least one token is left.
inline SamplingOracle sampling_oracle(std::span<const float> logits,
                                      const SamplingParams& p,
                                      std::span<const int32_t> counts) {
  const size_t vocab = logits.size();
  std::vector<float> x(logits.begin(), logits.end());
  for (const auto& [id, bias] : p.logit_bias) {
    x[static_cast<size_t>(id)] += bias;
  }
  std::vector<double> z(vocab);
  for (size_t i = 0; i < vocab; ++i) {
    if (!counts.empty() && counts[i] > 0) {
      x[i] = x[i] > 0 ? std::min(x[i] / p.repetition_penalty, std::numeric_limits<float>::max())
                      : x[i] * p.repetition_penalty;
      x[i] -= p.frequency_penalty * static_cast<float>(counts[i]);
      x[i] -= p.presence_penalty;
    }
    const bool allowed = p.allowed_bits.empty() || (p.allowed_bits[i / 32] >> (i % 32) & 1U) != 0;
    const bool forbidden = std::count(p.forbidden_ids.begin(), p.forbidden_ids.end(), i) > 0;
    z[i] = !allowed || forbidden ? -std::numeric_limits<double>::infinity()
                                 : x[i] / (p.temperature == 0 ? 1.0 : double{p.temperature});
  }
  SamplingOracle out{std::vector<double>(vocab), std::vector<double>(vocab, 0.0), p.forced_id};
  const double largest = *std::max_element(z.begin(), z.end());
  std::vector<double> e(vocab);
  std::transform(z.begin(), z.end(), e.begin(), [&](double v) { return std::exp(v - largest); });
  const double sum = std::accumulate(e.begin(), e.end(), 0.0);
  for (size_t i = 0; i < vocab; ++i) {
    out.logprobs[i] = z[i] - largest - std::log(sum);
  }
  std::vector<size_t> order(vocab);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return z[a] > z[b]; });
  const size_t k = p.temperature == 0 ? 1 : p.top_k < 0 ? vocab : static_cast<size_t>(p.top_k);
  order.resize(std::min(k, vocab));
  std::vector<size_t> by_id = order;
  std::sort(by_id.begin(), by_id.end());
  double kept_sum = 0.0;
  for (const size_t i : by_id) {
    kept_sum += e[i];
  }
  double before = 0.0;
  double best = -std::numeric_limits<double>::infinity();
  for (const size_t i : order) {
    if ((p.top_p >= 1.0F || before < double{p.top_p} * kept_sum) && e[i] >= double{p.min_p}) {
      out.law[i] = e[i];
    }
    before += e[i];
  }
  const double law_sum = std::accumulate(out.law.begin(), out.law.end(), 0.0);
  for (size_t i = 0; i < vocab; ++i) {
    const double noise =
        gumbel_noise(p.seed, p.sample_index, p.position, static_cast<int32_t>(i), kSamplingStream);
    if (out.law[i] > 0 && z[i] + noise > best && p.forced_id < 0) {
      best = z[i] + noise;
      out.drawn = static_cast<int32_t>(i);
    }
    out.law[i] /= law_sum;
  }
  return out;
}

}  // namespace baleen::kernels
