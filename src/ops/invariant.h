#pragma once
// How an operator joins its two forms: the value of the fixed-order CPU kernel, the gradient of the
// tensor code. The tensor code runs only where a gradient is needed.
//
//   if (numerics.invariant()) {
//     return invariant_value(x, needs_gradient(x, w), [&] { return at::linear(x, w); },
//                            [&] { return fixed_linear(x, w); });
//   }

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "base/check.h"
#include "ops/rounding.h"

namespace baleen::ops {

/// `x`: an input of the operator, on the CPU (checked).
template <class Fast, class Fixed>
at::Tensor invariant_value(const at::Tensor& x, bool gradient, Fast&& fast, Fixed&& fixed) {
  BALEEN_CHECK(x.device().is_cpu(), "the fixed order of summation is for the CPU");
  at::Tensor value;
  {
    const at::NoGradGuard no_grad;
    value = fixed();
  }
  return gradient ? straight_through(fast(), value) : value;
}

}  // namespace baleen::ops
