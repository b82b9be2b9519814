#pragma once
// The Sinkhorn normalisation as tensor code, for devices without an own kernel; hyper_connection.h
// is what models call, this header exists so that the tensor code is tested on the CPU.
//
//   at::Tensor comb = sinkhorn_steps(logits, {.count = 7, .width = 4, .iters = 20, .eps = 1e-6});

#include <ATen/core/Tensor.h>

#include "kernels/sinkhorn/sinkhorn_cpu.h"

namespace baleen::ops {

using kernels::SinkhornShape;

/// logits [..., n, n] -> comb; two launches per step.
at::Tensor sinkhorn_steps(const at::Tensor& logits, const SinkhornShape& shape);

/// Gradient of the logits; the steps are recomputed.
at::Tensor sinkhorn_steps_backward(const at::Tensor& logits,
                                   const at::Tensor& dcomb,
                                   const SinkhornShape& shape);

}  // namespace baleen::ops
