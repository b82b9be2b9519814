#pragma once
// Expert routing: scores, the choice of experts (by score plus bias, or by a table over token ids)
// and the weights of the chosen ones. The choice is constant for autograd; weights are
// differentiable.
//
//   at::Tensor scores = router_scores(x, gate, numerics);
//   at::Tensor experts = route_by_score(scores, bias, k);          // or route_by_table(table, ids)
//   at::Tensor weights = route_weights(scores, experts, scale, numerics);

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "ops/numerics_config.h"

namespace baleen::ops {

/// sqrt(softplus(x * gate^T)). x [N, H], gate [E, H] -> [N, E]. The gradient is 0 where the score
/// underflows to 0.
at::Tensor router_scores(const at::Tensor& x, const at::Tensor& gate, const Numerics& numerics);

/// sqrt(softplus(z)), any shape.
at::Tensor sqrt_softplus(const at::Tensor& z, const Numerics& numerics);

/// The k largest of scores + bias, best first; ties go to the lower expert; NaN ranks below -inf.
/// scores [N, E], bias [E] or undefined -> int64 [N, k].
at::Tensor route_by_score(const at::Tensor& scores, const at::Tensor& bias, int64_t k);

/// Rows of the table, as listed (repeated experts allowed). table int64 [V, k], ids int64 [N] ->
/// [N, k].
at::Tensor route_by_table(const at::Tensor& table, const at::Tensor& ids);

/// scale * s_i / (sum of the chosen s + router_denominator_eps); scale / k each when all chosen
/// scores are 0. scores [N, E], experts int64 [N, k] -> [N, k].
at::Tensor route_weights(const at::Tensor& scores,
                         const at::Tensor& experts,
                         double scale,
                         const Numerics& numerics);

}  // namespace baleen::ops
