#include "ops/router.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/check.h"
#include "kernels/router/router_cpu.h"
#include "ops/invariant.h"
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

at::Tensor router_scores_by_kernel(const at::Tensor& z) {
  const at::Tensor logits = z.contiguous();
  at::Tensor scores = at::empty_like(logits);
  AT_DISPATCH_FLOATING_TYPES(logits.scalar_type(), "router_scores", [&] {
    kernels::router_scores_cpu(
        logits.const_data_ptr<scalar_t>(), scores.mutable_data_ptr<scalar_t>(), logits.numel());
  });
  return scores;
}

at::Tensor weights_by_tensors(const at::Tensor& scores,
                              const at::Tensor& experts,
                              double scale,
                              const Numerics& numerics) {
  const at::Tensor chosen = scores.gather(1, experts);
  const at::Tensor sum = chosen.sum(1, /*keepdim=*/true);
  const at::Tensor underflown = sum.eq(0.0);
  const at::Tensor divisor = sum.masked_fill(underflown, 1.0).add(numerics.router_denominator_eps);
  return (scale * chosen / divisor)
      .masked_fill(underflown, scale / static_cast<double>(experts.size(1)));
}

at::Tensor weights_by_kernel(const at::Tensor& scores,
                             const at::Tensor& experts,
                             double scale,
                             const Numerics& numerics) {
  const at::Tensor all = scores.contiguous();
  const at::Tensor ids = experts.contiguous();
  at::Tensor weights = at::empty(ids.sizes(), all.options());
  AT_DISPATCH_FLOATING_TYPES(all.scalar_type(), "route_weights", [&] {
    kernels::route_weights_cpu<scalar_t>({.scores = all.const_data_ptr<scalar_t>(),
                                          .experts = ids.const_data_ptr<int64_t>(),
                                          .weights = weights.mutable_data_ptr<scalar_t>(),
                                          .rows = ids.size(0),
                                          .num_experts = all.size(1),
                                          .slots = ids.size(1),
                                          .scale = scale,
                                          .eps = numerics.router_denominator_eps});
  });
  return weights;
}

}  // namespace

at::Tensor sqrt_softplus(const at::Tensor& z, const Numerics& numerics) {
  const bool gradient = needs_gradient(z);
  const auto by_tensors = [&] { return gradient ? SqrtSoftplus::apply(z) : score_of(z); };
  return numerics.invariant()
             ? invariant_value(z, gradient, by_tensors, [&] { return router_scores_by_kernel(z); })
             : by_tensors();
}

at::Tensor router_scores(const at::Tensor& x, const at::Tensor& gate, const Numerics& numerics) {
  return sqrt_softplus(linear_unrounded(x, gate, numerics), numerics);
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
  const auto by_tensors = [&] { return weights_by_tensors(scores, experts, scale, numerics); };
  if (numerics.invariant()) {
    return invariant_value(scores, needs_gradient(scores), by_tensors, [&] {
      return weights_by_kernel(scores, experts, scale, numerics);
    });
  }
  return by_tensors();
}

}  // namespace baleen::ops
