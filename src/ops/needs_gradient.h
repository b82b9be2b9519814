#pragma once
// Whether a call has to leave a trace for backward. Operators use it to choose between a plain
// computation and an autograd function; the values are the same.
//
//   if (!needs_gradient(q, rows)) return forward_only(q, rows);

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

namespace baleen::ops {

template <class... Tensors>
bool needs_gradient(const Tensors&... tensors) {
  return c10::GradMode::is_enabled() && ((tensors.defined() && tensors.requires_grad()) || ...);
}

}  // namespace baleen::ops
