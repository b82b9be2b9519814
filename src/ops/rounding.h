#pragma once
// Rounding to a storage format with the value kept in the compute dtype, and identity gradients.
//
//   at::Tensor stored = ops::store_activation(y, numerics);  // bf16 where the setting says so
//   at::Tensor rounded = ops::round_bf16(y);

#include <ATen/core/Tensor.h>

#include "ops/numerics_config.h"

namespace baleen::ops {

/// Nearest bf16, ties to even. Any shape. Gradient: identity.
at::Tensor round_bf16(const at::Tensor& x);

/// round_bf16 when numerics.round_activations, else x itself.
at::Tensor store_activation(const at::Tensor& x, const Numerics& numerics);

/// `value`, with the gradient passed to `x` unchanged. Same shape and dtype.
at::Tensor straight_through(const at::Tensor& x, const at::Tensor& value);

}  // namespace baleen::ops
