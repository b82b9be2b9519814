#pragma once
// Products of CPU tensors through kernels/linear: fixed order, rows and outputs split over threads.
// For the operators of this room when numerics.invariant(); never under autograd.
//
//   at::Tensor y = fixed_linear(x, weight);

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace baleen::ops {

/// x [..., in], weight [out, in] -> [..., out].
at::Tensor fixed_linear(const at::Tensor& x, const at::Tensor& weight);

/// x [N, groups, in], weight [groups, out, in] -> [N, groups, out].
at::Tensor fixed_grouped_linear(const at::Tensor& x, const at::Tensor& weight);

}  // namespace baleen::ops
