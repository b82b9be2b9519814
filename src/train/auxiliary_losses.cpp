#include "train/auxiliary_losses.h"

#include <algorithm>

#include <ATen/ATen.h>

namespace baleen::train {
namespace {

constexpr int64_t kEntriesToChoose = 2;  // with fewer the softmax is a constant
constexpr double kHidden = -1e30;        // a finite score, so that no gradient is NaN

}  // namespace

LayerBalance layer_balance(const model::LayerTaps& taps,
                           const at::Tensor& row_sample,
                           int64_t num_samples,
                           const at::Tensor& real,
                           const SumOverRanks& sum_over_ranks) {
  const at::Tensor& scores = taps.router_scores;
  const int64_t experts = scores.size(-1);
  const int64_t slots = taps.router_experts.size(-1);
  const at::Tensor mask = real.unsqueeze(-1);
  const auto constant = scores.options().requires_grad(false);
  const at::Tensor chosen =
      at::zeros({scores.size(0), experts}, constant).scatter_(1, taps.router_experts, 1.0) * mask;
  const at::Tensor shares = scores / scores.sum(-1, /*keepdim=*/true) * mask;
  const at::Tensor none = at::zeros({num_samples, experts}, constant);
  at::Tensor lengths = at::zeros({num_samples}, constant).index_add(0, row_sample, real);
  at::Tensor counts = none.index_add(0, row_sample, chosen);
  if (sum_over_ranks) {
    sum_over_ranks(lengths);
    sum_over_ranks(counts);
  }
  const at::Tensor sums = none.index_add(0, row_sample, shares);
  const double scale = static_cast<double>(experts) / static_cast<double>(slots);
  return {.loss = scale * ((counts * sums).sum(-1) / lengths.clamp_min(1.0).square()).sum(),
          .load = chosen.sum(0)};
}

at::Tensor index_divergence(const at::Tensor& scores,
                            const at::Tensor& attention,
                            int64_t ratio,
                            const at::Tensor& real,
                            int64_t first_position) {
  const int64_t tokens = scores.size(1);
  const auto integers = scores.options().dtype(at::kLong).requires_grad(false);
  const at::Tensor visible = at::arange(first_position + 1, first_position + tokens + 1, integers)
                                 .div(ratio, "floor")
                                 .unsqueeze(1);  // [T, 1]
  const at::Tensor hidden = at::arange(scores.size(2), integers).ge(visible);
  const at::Tensor target = attention / attention.sum(-1, true).clamp_min(1e-12);
  const at::Tensor log_scores =
      at::log_softmax(scores.masked_fill(hidden, kHidden), -1).masked_fill(hidden, 0.0);
  const at::Tensor divergence = (target * (target.clamp_min(1e-12).log() - log_scores)).sum(-1);
  return (divergence * (real * visible.ge(kEntriesToChoose).squeeze(1))).sum();
}

int64_t index_tokens(int64_t tokens, int64_t ratio) {
  return std::max<int64_t>(0, tokens - (kEntriesToChoose * ratio - 1));
}

}  // namespace baleen::train
