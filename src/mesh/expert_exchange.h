#pragma once
// Routed experts that are spread over ranks: every (token, slot) pair travels to the rank of its
// expert and its output back to its slot, and the slots of a token are added in ascending expert
// id. An expert sees its rows in the order of rank, token, slot, which is that of all tokens on one
// rank, so that neither outputs nor gradients depend on how many ranks there are beyond the sums
// inside a product. No token is dropped.
//
//   at::Tensor y = experts_over_ranks(x, experts, weights, shard, 256, format, limit, numerics,
//                                     mesh.group(Axis::kExperts));

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "comm/group.h"
#include "ops/experts.h"

namespace baleen::mesh {

/// As ops::routed_experts for x [N, H], N > 0, with ids in [0, num_experts); `shard` holds the
/// rank's consecutive num_experts / size() experts.
at::Tensor experts_over_ranks(const at::Tensor& x,
                              const at::Tensor& experts,
                              const at::Tensor& weights,
                              const ops::ExpertWeights& shard,
                              int64_t num_experts,
                              ops::LinearFormat format,
                              std::optional<double> limit,
                              const ops::Numerics& numerics,
                              comm::Group& group);

}  // namespace baleen::mesh
