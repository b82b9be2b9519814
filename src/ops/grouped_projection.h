#pragma once
// The first half of the attention output projection: heads in G groups, each with its own matrix.
//
//   at::Tensor v = grouped_projection(o, wo_a, groups, numerics);  // then linear(v, wo_b, ...)

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "ops/numerics_config.h"

namespace baleen::ops {

/// x [..., nh, D] (or [..., nh * D]), wo_a [G * O, nh * D / G]; group g uses heads g * nh / G ...
/// and rows g * O ... -> [..., G * O], stored as bf16 where the setting says so. The input is
/// rounded to e4m3 blocks of 128 along the group's width only with numerics.wo_a_activation kFp8.
at::Tensor grouped_projection(const at::Tensor& x,
                              const at::Tensor& wo_a,
                              int64_t groups,
                              const Numerics& numerics);

}  // namespace baleen::ops
