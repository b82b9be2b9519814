#include "ops/rms_norm.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>

#include "base/check.h"
#include "kernels/rms_norm/rms_norm_cpu.h"
#include "ops/invariant.h"
#include "ops/needs_gradient.h"
#include "ops/rounding.h"

namespace baleen::ops {
namespace {

at::Tensor normalised(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor rho = x.square().mean(-1, /*keepdim=*/true).add(eps).rsqrt();
  const at::Tensor unit = x * rho;
  return weight.defined() ? unit * weight : unit;
}

/// One pass per row, for CPU tensors that need no gradient; rounded as store_activation does.
at::Tensor fused_norm(const at::Tensor& x, const at::Tensor& weight, double eps, bool rounded) {
  const at::Tensor source = x.contiguous();
  const at::Tensor gain = weight.defined() ? weight.contiguous() : weight;
  at::Tensor y = at::empty_like(source);
  AT_DISPATCH_FLOATING_TYPES(source.scalar_type(), "rms_norm", [&] {
    kernels::rms_norm_cpu<scalar_t>(
        {.x = source.const_data_ptr<scalar_t>(),
         .weight = gain.defined() ? gain.const_data_ptr<scalar_t>() : nullptr,
         .y = y.mutable_data_ptr<scalar_t>(),
         .rows = source.numel() / source.size(-1),
         .width = source.size(-1),
         .eps = eps,
         .rounded = rounded});
  });
  return y;
}

at::Tensor stored_norm(const at::Tensor& x,
                       const at::Tensor& weight,
                       double eps,
                       const Numerics& numerics) {
  const bool gradient = needs_gradient(x, weight);
  const auto by_tensors = [&] { return store_activation(normalised(x, weight, eps), numerics); };
  const auto by_kernel = [&] { return fused_norm(x, weight, eps, numerics.round_activations); };
  if (numerics.invariant()) {
    return invariant_value(x, gradient, by_tensors, by_kernel);
  }
  return x.device().is_cpu() && x.size(-1) > 0 && !gradient ? by_kernel() : by_tensors();
}

/// Every step of the formula in bf16, as tensor code over a bf16 tensor rounds it.
at::Tensor stepwise_bf16_norm(const at::Tensor& x, double eps) {
  const at::Tensor source = x.detach().to(at::kFloat).to(at::kBFloat16);
  const at::Tensor rho = source.square().mean(-1, /*keepdim=*/true).add(eps).rsqrt();
  return (source * rho).to(x.scalar_type());
}

/// The same steps with the sum of squares in a fixed order.
at::Tensor fused_stepwise_norm(const at::Tensor& x, double eps) {
  BALEEN_CHECK(x.device().is_cpu(), "the fixed order of summation is for the CPU");
  const at::Tensor source = x.detach().contiguous();
  at::Tensor y = at::empty_like(source);
  AT_DISPATCH_FLOATING_TYPES(source.scalar_type(), "rms_norm_stepwise", [&] {
    kernels::rms_norm_stepwise_cpu<scalar_t>({.x = source.const_data_ptr<scalar_t>(),
                                              .y = y.mutable_data_ptr<scalar_t>(),
                                              .rows = source.numel() / source.size(-1),
                                              .width = source.size(-1),
                                              .eps = eps});
  });
  return y;
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x,
                    const at::Tensor& weight,
                    double eps,
                    const Numerics& numerics) {
  BALEEN_CHECK(!weight.defined() || (weight.dim() == 1 && weight.size(0) == x.size(-1)),
               "norm weight of {} for width {}",
               weight.numel(),
               x.size(-1));
  return stored_norm(x, weight, eps, numerics);
}

at::Tensor query_head_norm(const at::Tensor& x, double eps, const Numerics& numerics) {
  if (numerics.query_norm == QueryNorm::kBf16) {
    const at::Tensor stored =
        numerics.invariant() ? fused_stepwise_norm(x, eps) : stepwise_bf16_norm(x, eps);
    return straight_through(normalised(x, at::Tensor(), eps), stored);
  }
  return stored_norm(x, at::Tensor(), eps, numerics);
}

}  // namespace baleen::ops
