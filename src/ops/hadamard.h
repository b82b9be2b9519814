#pragma once
// The orthonormal Walsh-Hadamard transform, natural order, no random signs. Symmetric and its own
// inverse, so its backward is itself.
//
//   at::Tensor k = ops::hadamard(entry, numerics);

#include <ATen/core/Tensor.h>

#include "ops/numerics_config.h"

namespace baleen::ops {

/// x [..., N], N a power of two -> N^-1/2 * H x, stored as bf16 where the setting says so.
at::Tensor hadamard(const at::Tensor& x, const Numerics& numerics);

/// What index queries and keys go through after RoPE: Hadamard and quantisation as the switches
/// say.
at::Tensor index_transform(const at::Tensor& x, const Numerics& numerics);

}  // namespace baleen::ops
