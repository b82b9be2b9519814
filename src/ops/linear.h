#pragma once
// Linear layers without bias: y = x * weight^T, with the input rounded as the weight's format asks.
// Weights come dequantised (exact in float) in the compute dtype.
//
//   at::Tensor q = ops::linear(x, wq_a, ops::LinearFormat::kFp8, numerics);
//   at::Tensor logits = ops::linear_unrounded(h, head, numerics);

#include <ATen/core/Tensor.h>

#include "ops/linear_format.h"
#include "ops/numerics_config.h"

namespace baleen::ops {

/// The input as a product of `format` sees it: e4m3 in blocks of 128 for kFp8 and kFp4 when
/// numerics.linear_activation is kFp8, else x. Call once when several products share the input.
at::Tensor linear_input(const at::Tensor& x, LinearFormat format, const Numerics& numerics);

/// x [..., in], weight [out, in] -> [..., out], stored as bf16 where the setting says so.
at::Tensor linear(const at::Tensor& x,
                  const at::Tensor& weight,
                  LinearFormat format,
                  const Numerics& numerics);

/// The same for an input that already went through linear_input.
at::Tensor linear_prepared(const at::Tensor& prepared,
                           const at::Tensor& weight,
                           const Numerics& numerics);

/// Compute-dtype product whose result is not rounded: router, compressor projections, head.
at::Tensor linear_unrounded(const at::Tensor& x,
                            const at::Tensor& weight,
                            const Numerics& numerics);

}  // namespace baleen::ops
