#pragma once
// Mixture of experts of one block: router, routed experts, the always-on shared expert.
//
//   at::Tensor y = mixture_of_experts(x, block.moe, block.spec, place, step);  // [N, H] -> [N, H]

#include <ATen/core/Tensor.h>

#include "model/context.h"
#include "model/parameters.h"

namespace baleen::model {

/// x [N, H], after ffn_norm.
at::Tensor mixture_of_experts(const at::Tensor& x,
                              const MoeParameters& params,
                              const LayerSpec& spec,
                              const BlockPlace& place,
                              const StepContext& step);

}  // namespace baleen::model
