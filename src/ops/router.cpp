#include "ops/router.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/check.h"
#include "ops/linear.h"
#include "ops/needs_gradient.h"
#include "ops/total_order.h"

namespace baleen::ops {
namespace {

constexpr double kSoftplusThreshold = 20.0;  // above it softplus(z) is z

at::Tensor score_of(const at::Tensor& z) {
  return at::softplus(z, 1.0, kSoftplusThreshold).sqrt();
}

/// Autograd's own chain would divide 0 by 0 where the score underflows.
class SqrtSoftplus : public torch::autograd::Function<SqrtSoftplus> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& z) {
    const at::Tensor score = score_of(z);
    ctx->save_for_backward({z, score});
    return score;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor slope = saved[0].sigmoid() / (2.0 * saved[1]);
    return {grads[0] * slope.masked_fill(saved[1].eq(0.0), 0.0)};
  }
};

}  // namespace

at::Tensor sqrt_softplus(const at::Tensor& z) {
  return needs_gradient(z) ? SqrtSoftplus::apply(z) : score_of(z);
}

at::Tensor router_scores(const at::Tensor& x, const at::Tensor& gate) {
  return sqrt_softplus(linear_unrounded(x, gate));
}

at::Tensor route_by_score(const at::Tensor& scores, const at::Tensor& bias, int64_t k) {
  BALEEN_CHECK(
      scores.dim() == 2 && k >= 0 && k <= scores.size(1), "{} of {} experts", k, scores.size(-1));
  const at::Tensor ranked = bias.defined() ? scores.detach() + bias.detach() : scores.detach();
  return std::get<1>(at::sort(total_order_keys(ranked), /*stable=*/true, -1, /*descending=*/true))
      .narrow(-1, 0, k);
}

at::Tensor route_by_table(const at::Tensor& table, const at::Tensor& ids) {
  BALEEN_CHECK(
      table.dim() == 2 && ids.dim() == 1, "table dims {} ids dims {}", table.dim(), ids.dim());
  return table.index_select(0, ids);
}

at::Tensor route_weights(const at::Tensor& scores,
                         const at::Tensor& experts,
                         double scale,
                         const Numerics& numerics) {
  BALEEN_CHECK(scores.dim() == 2 && experts.dim() == 2 && scores.size(0) == experts.size(0),
               "{} rows of scores, {} rows of experts",
               scores.size(0),
               experts.size(0));
  const at::Tensor chosen = scores.gather(1, experts);
  const at::Tensor sum = chosen.sum(1, /*keepdim=*/true);
  const at::Tensor underflown = sum.eq(0.0);
  const at::Tensor divisor = sum.masked_fill(underflown, 1.0).add(numerics.router_denominator_eps);
  return (scale * chosen / divisor)
      .masked_fill(underflown, scale / static_cast<double>(experts.size(1)));
}

}  // namespace baleen::ops
