#pragma once
// The main model cut where the residual streams are the only thing handed on: embedding, runs of
// blocks, and (head.h) what makes logits of the streams. The whole model is one stage behind
// another; pipeline ranks hold some of them each.
//
//   at::Tensor streams = embed_stage(params, step);
//   streams = run_blocks(params, std::move(streams), 0, params.blocks.size(), step);

#include <cstddef>

#include <ATen/core/Tensor.h>

#include "model/context.h"
#include "model/parameters.h"

namespace baleen::model {

/// Embeddings [N, H] of the step's ids; `embed` [V, H], or this rank's rows of it.
at::Tensor embedded_ids(const at::Tensor& embed, const StepContext& step);

/// Streams [N, n, H] before block 0.
at::Tensor embed_stage(const ModelParameters& params, const StepContext& step);

/// Streams [N, n, H] through blocks [first, last).
at::Tensor run_blocks(const ModelParameters& params,
                      at::Tensor streams,
                      std::size_t first,
                      std::size_t last,
                      const StepContext& step);

}  // namespace baleen::model
