#include "ops/rounding.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/check.h"
#include "numerics/bfloat16.h"
#include "ops/needs_gradient.h"

namespace baleen::ops {
namespace {

class StraightThrough : public torch::autograd::Function<StraightThrough> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext*,
                            const at::Tensor&,
                            const at::Tensor& value) {
    return value;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list grads) {
    return {grads[0], at::Tensor()};
  }
};

constexpr int64_t kSmall = 16384;  // elements up to which one plain loop beats two vectorised casts

at::Tensor rounded_by_loop(const at::Tensor& x) {
  at::Tensor y = x.clone(at::MemoryFormat::Contiguous);
  AT_DISPATCH_FLOATING_TYPES(y.scalar_type(), "round_bf16", [&] {
    auto* data = y.mutable_data_ptr<scalar_t>();
    for (int64_t i = 0; i < y.numel(); ++i) {
      data[i] = numerics::round_to_bf16(data[i]);
    }
  });
  return y;
}

}  // namespace

at::Tensor straight_through(const at::Tensor& x, const at::Tensor& value) {
  BALEEN_CHECK(x.sizes() == value.sizes() && x.scalar_type() == value.scalar_type(),
               "the rounded value must have the shape and dtype of its source");
  return needs_gradient(x) ? StraightThrough::apply(x, value.detach()) : value;
}

at::Tensor round_bf16(const at::Tensor& x) {
  const at::Tensor source = x.detach();
  // A double has to be rounded once, which the casts of ATen do not: they go through float.
  if (source.device().is_cpu() &&
      (source.scalar_type() == at::kDouble || source.numel() <= kSmall)) {
    return straight_through(x, rounded_by_loop(source));
  }
  return straight_through(x, source.to(at::kFloat).to(at::kBFloat16).to(x.scalar_type()));
}

at::Tensor store_activation(const at::Tensor& x, const Numerics& numerics) {
  return numerics.round_activations ? round_bf16(x) : x;
}

}  // namespace baleen::ops
