#include "ops/rms_norm.h"

#include <ATen/ATen.h>

#include "base/check.h"
#include "ops/rounding.h"

namespace baleen::ops {
namespace {

at::Tensor normalised(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor rho = x.square().mean(-1, /*keepdim=*/true).add(eps).rsqrt();
  const at::Tensor unit = x * rho;
  return weight.defined() ? unit * weight : unit;
}

/// Every step of the formula in bf16, as tensor code over a bf16 tensor rounds it.
at::Tensor stepwise_bf16_norm(const at::Tensor& x, double eps) {
  const at::Tensor source = x.detach().to(at::kFloat).to(at::kBFloat16);
  const at::Tensor rho = source.square().mean(-1, /*keepdim=*/true).add(eps).rsqrt();
  return (source * rho).to(x.scalar_type());
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
  return store_activation(normalised(x, weight, eps), numerics);
}

at::Tensor query_head_norm(const at::Tensor& x, double eps, const Numerics& numerics) {
  const at::Tensor exact = normalised(x, at::Tensor(), eps);
  if (numerics.query_norm == QueryNorm::kBf16) {
    return straight_through(exact, stepwise_bf16_norm(x, eps));
  }
  return store_activation(exact, numerics);
}

}  // namespace baleen::ops
