#pragma once
// Experts of CPU rows through kernels/experts: each row in a fixed order, whatever rows stand
// beside it. For the operators of experts.h; never under autograd.
//
//   at::Tensor y = fixed_routed_experts(prepared, experts, weights, expert_weights, options);

#include <ATen/core/Tensor.h>

#include "kernels/experts/experts_cpu.h"
#include "ops/experts.h"

namespace baleen::ops {

/// Row by row, reading the chosen experts' weights only: for few rows. prepared [N, H] went through
/// linear_input; experts int64 [N, k], weights [N, k] -> [N, H].
at::Tensor routed_experts_per_token(const at::Tensor& prepared,
                                    const at::Tensor& experts,
                                    const at::Tensor& weights,
                                    const ExpertWeights& expert_weights,
                                    const kernels::ExpertOptions& options);

/// The same bits, expert by expert: for many rows.
at::Tensor routed_experts_by_expert(const at::Tensor& prepared,
                                    const at::Tensor& experts,
                                    const at::Tensor& weights,
                                    const ExpertWeights& expert_weights,
                                    const kernels::ExpertOptions& options);

/// One expert on all rows: prepared [..., H], w1, w3 [I, H], w2 [H, I] -> [..., H].
at::Tensor fixed_expert(const at::Tensor& prepared,
                        const at::Tensor& w1,
                        const at::Tensor& w3,
                        const at::Tensor& w2,
                        const kernels::ExpertOptions& options);

}  // namespace baleen::ops
