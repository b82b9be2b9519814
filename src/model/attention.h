#pragma once
// Attention of one block: query latent and heads, the shared KV row, the entries it may see, one
// softmax over both, and the grouped output projection.
//
//   at::Tensor y = attention(x, block.attention, block.spec, place, step);  // [N, H] -> [N, H]

#include <ATen/core/Tensor.h>

#include "model/context.h"
#include "model/parameters.h"

namespace baleen::model {

/// x [N, H], after attn_norm. With states, adds the step's tokens to them.
at::Tensor attention(const at::Tensor& x,
                     const AttentionParameters& params,
                     const LayerSpec& spec,
                     const BlockPlace& place,
                     const StepContext& step);

}  // namespace baleen::model
