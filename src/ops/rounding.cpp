#include "ops/rounding.h"

#include <ATen/ATen.h>
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

/// Rounds once; the cast of ATen goes through float.
at::Tensor rounded_doubles(const at::Tensor& x) {
  at::Tensor y = x.clone(at::MemoryFormat::Contiguous);
  auto* data = y.mutable_data_ptr<double>();
  for (int64_t i = 0; i < y.numel(); ++i) {
    data[i] = numerics::round_to_bf16(data[i]);
  }
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
  if (source.device().is_cpu() && source.scalar_type() == at::kDouble) {
    return straight_through(x, rounded_doubles(source));
  }
  return straight_through(x, source.to(at::kFloat).to(at::kBFloat16).to(x.scalar_type()));
}

at::Tensor store_activation(const at::Tensor& x, const Numerics& numerics) {
  return numerics.round_activations ? round_bf16(x) : x;
}

}  // namespace baleen::ops
