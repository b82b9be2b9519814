#pragma once
// RMSNorm over the last dim. Rounding: once, at the very end, after the weight.
//
//   at::Tensor y = ops::rms_norm(x, attn_norm, config.rms_norm_eps, numerics);
//   at::Tensor q = ops::query_head_norm(q_heads, config.rms_norm_eps, numerics);

#include <ATen/core/Tensor.h>

#include "ops/numerics_config.h"

namespace baleen::ops {

/// y = weight * (x * (mean(x^2) + eps)^-1/2). x [..., N], weight [N] or undefined (all ones).
at::Tensor rms_norm(const at::Tensor& x,
                    const at::Tensor& weight,
                    double eps,
                    const Numerics& numerics);

/// The norm of the query heads, without weight. x [..., nh, D]. With numerics.query_norm kBf16 the
/// square, mean, sum with eps, rsqrt and product each round to bf16.
at::Tensor query_head_norm(const at::Tensor& x, double eps, const Numerics& numerics);

}  // namespace baleen::ops
