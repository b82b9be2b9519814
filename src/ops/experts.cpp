#include "ops/experts.h"

#include <limits>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "base/check.h"
#include "kernels/experts/experts_cpu.h"
#include "ops/fixed_experts.h"
#include "ops/invariant.h"
#include "ops/linear.h"
#include "ops/needs_gradient.h"
#include "ops/rounding.h"

namespace baleen::ops {
namespace {

constexpr int64_t kPerTokenRows = 4;       // up to here products of one row beat gathering
constexpr int64_t kDenseExpertLimit = 32;  // above it the wasted products outweigh the host's wait

struct Call {
  const ExpertWeights& weights;
  LinearFormat format;
  std::optional<double> limit;
  const Numerics& numerics;
  bool weight_first() const { return numerics.routing_weight == RoutingWeight::kBeforeW2; }
};

/// Rows of one expert with their route weights [n]; `prepared` went through linear_input.
at::Tensor one_expert(const Call& call,
                      const at::Tensor& prepared,
                      const at::Tensor& row_weights,
                      int64_t expert) {
  const at::Tensor gate =
      linear_prepared(prepared, call.weights.w1.select(0, expert), call.numerics);
  const at::Tensor up = linear_prepared(prepared, call.weights.w3.select(0, expert), call.numerics);
  at::Tensor hidden = swiglu(gate, up, call.limit);
  if (call.weight_first()) {
    hidden = hidden * row_weights.unsqueeze(-1);
  }
  const at::Tensor y = linear(store_activation(hidden, call.numerics),
                              call.weights.w2.select(0, expert),
                              call.format,
                              call.numerics);
  return call.weight_first() ? y : y * row_weights.unsqueeze(-1);
}

/// Sum over the slots of each row, first slot first.
at::Tensor sum_of_slots(const at::Tensor& y) {
  at::Tensor sum = y.select(1, 0);
  for (int64_t slot = 1; slot < y.size(1); ++slot) {
    sum = sum + y.select(1, slot);
  }
  return sum;
}

at::Tensor run_grouped(const Call& call,
                       const at::Tensor& x,
                       const at::Tensor& experts,
                       const at::Tensor& weights) {
  const int64_t slots = experts.size(1);
  // Slots of a row in ascending expert id, so that the combine needs no further order.
  const auto [sorted, slot_order] = at::sort(experts, std::optional<bool>(true), 1);
  const at::Tensor flat_weights = weights.gather(1, slot_order).reshape({-1});
  const auto [by_expert, order] = at::sort(sorted.reshape({-1}), std::optional<bool>(true), 0);
  const at::Tensor counts = at::bincount(by_expert, {}, call.weights.w1.size(0)).to(at::kCPU);
  const at::Tensor prepared =
      linear_input(x, call.format, call.numerics).index_select(0, order.floor_divide(slots));
  const at::Tensor row_weights = flat_weights.index_select(0, order);
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (int64_t expert = 0; expert < counts.size(0); ++expert) {
    const int64_t count = counts.const_data_ptr<int64_t>()[expert];
    if (count > 0) {
      parts.push_back(one_expert(
          call, prepared.narrow(0, begin, count), row_weights.narrow(0, begin, count), expert));
      begin += count;
    }
  }
  const at::Tensor by_slot =
      at::cat(parts, 0).index_select(0, at::argsort(order, /*stable=*/true, 0));
  return sum_of_slots(by_slot.view({x.size(0), slots, x.size(1)}));
}

at::Tensor run_dense(const Call& call,
                     const at::Tensor& x,
                     const at::Tensor& experts,
                     const at::Tensor& weights) {
  const int64_t rows = x.size(0);
  const int64_t num_experts = call.weights.w1.size(0);
  const int64_t width = call.weights.w1.size(1);
  const at::Tensor prepared = linear_input(x, call.format, call.numerics);
  const auto all_experts = [&](const at::Tensor& w) {
    return linear_prepared(prepared, w.reshape({num_experts * width, x.size(1)}), call.numerics);
  };
  at::Tensor hidden = swiglu(all_experts(call.weights.w1), all_experts(call.weights.w3), call.limit)
                          .view({rows, num_experts, width});
  const at::Tensor matrix = at::zeros({rows, num_experts}, weights.options().requires_grad(false))
                                .scatter_add(1, experts, weights)
                                .unsqueeze(-1);
  if (call.weight_first()) {
    hidden = hidden * matrix;
  }
  hidden = linear_input(store_activation(hidden, call.numerics), call.format, call.numerics);
  at::Tensor y = store_activation(at::bmm(hidden.transpose(0, 1), call.weights.w2.transpose(1, 2)),
                                  call.numerics);
  if (!call.weight_first()) {
    y = y * matrix.transpose(0, 1);
  }
  return y.sum(0);
}

kernels::ExpertOptions kernel_options(LinearFormat format,
                                      std::optional<double> limit,
                                      const Numerics& numerics) {
  return {.limit = limit.value_or(std::numeric_limits<double>::infinity()),
          .weight_before_w2 = numerics.routing_weight == RoutingWeight::kBeforeW2,
          .quantised = format != LinearFormat::kPlain &&
                       numerics.linear_activation == LinearActivation::kFp8,
          .rounded = numerics.round_activations};
}

/// Both forms of fixed order give the same bits.
at::Tensor run_fixed(const Call& call,
                     const at::Tensor& x,
                     const at::Tensor& experts,
                     const at::Tensor& weights,
                     bool per_token) {
  const at::Tensor prepared = linear_input(x, call.format, call.numerics);
  const kernels::ExpertOptions options = kernel_options(call.format, call.limit, call.numerics);
  return per_token ? routed_experts_per_token(prepared, experts, weights, call.weights, options)
                   : routed_experts_by_expert(prepared, experts, weights, call.weights, options);
}

ExpertForm automatic_form(const at::Tensor& x, bool gradients, int64_t num_experts) {
  if (!x.device().is_cpu()) {
    return num_experts <= kDenseExpertLimit ? ExpertForm::kDense : ExpertForm::kGrouped;
  }
  return !gradients && x.size(0) <= kPerTokenRows ? ExpertForm::kPerToken : ExpertForm::kGrouped;
}

}  // namespace

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up, std::optional<double> limit) {
  if (!limit) {
    return at::silu(gate) * up;
  }
  return at::silu(gate.clamp_max(*limit)) * up.clamp(-*limit, *limit);
}

at::Tensor swiglu_expert(const at::Tensor& x,
                         const at::Tensor& w1,
                         const at::Tensor& w3,
                         const at::Tensor& w2,
                         LinearFormat format,
                         std::optional<double> limit,
                         const Numerics& numerics) {
  const at::Tensor prepared = linear_input(x, format, numerics);
  const auto by_tensors = [&] {
    Numerics fast = numerics;
    fast.summation = Summation::kFast;
    const at::Tensor hidden =
        swiglu(linear_prepared(prepared, w1, fast), linear_prepared(prepared, w3, fast), limit);
    return linear(store_activation(hidden, fast), w2, format, fast);
  };
  if (numerics.invariant()) {
    return invariant_value(x, needs_gradient(x, w1, w3, w2), by_tensors, [&] {
      return fixed_expert(prepared, w1, w3, w2, kernel_options(format, limit, numerics));
    });
  }
  return by_tensors();
}

at::Tensor routed_experts(const at::Tensor& x,
                          const at::Tensor& experts,
                          const at::Tensor& weights,
                          const ExpertWeights& expert_weights,
                          LinearFormat format,
                          std::optional<double> limit,
                          const Numerics& numerics,
                          ExpertForm form) {
  BALEEN_CHECK(x.dim() == 2 && experts.dim() == 2 && experts.sizes() == weights.sizes() &&
                   experts.size(0) == x.size(0) && expert_weights.w1.dim() == 3 &&
                   expert_weights.w1.size(2) == x.size(1),
               "{} rows of width {}, {} x {} routes",
               x.size(0),
               x.size(-1),
               experts.size(0),
               experts.size(-1));
  if (x.size(0) == 0 || experts.size(1) == 0) {
    return at::zeros_like(x);
  }
  const bool gradients =
      needs_gradient(x, weights, expert_weights.w1, expert_weights.w3, expert_weights.w2);
  if (numerics.invariant()) {
    Numerics fast = numerics;
    fast.summation = Summation::kFast;
    const bool per_token =
        form == ExpertForm::kPerToken || (form == ExpertForm::kAuto && x.size(0) <= kPerTokenRows);
    return invariant_value(
        x,
        gradients,
        [&] { return run_grouped({expert_weights, format, limit, fast}, x, experts, weights); },
        [&] {
          return run_fixed(
              {expert_weights, format, limit, numerics}, x, experts, weights, per_token);
        });
  }
  const Call call{expert_weights, format, limit, numerics};
  const ExpertForm chosen =
      form == ExpertForm::kAuto ? automatic_form(x, gradients, expert_weights.w1.size(0)) : form;
  if (chosen == ExpertForm::kPerToken) {
    BALEEN_CHECK(x.device().is_cpu() && !gradients, "the per-token form is for CPU inference");
    return run_fixed(call, x, experts, weights, /*per_token=*/true);
  }
  return chosen == ExpertForm::kDense ? run_dense(call, x, experts, weights)
                                      : run_grouped(call, x, experts, weights);
}

}  // namespace baleen::ops
