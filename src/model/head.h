#pragma once
// From residual streams to logits: collapse of the streams, norm, output matrix. The main model and
// each MTP block have their own collapse and norm; the output matrix is shared.
//
//   at::Tensor logits = head_logits(streams, params.final_head, params.head, config, numerics);

#include <ATen/core/Tensor.h>

#include "base/model_config.h"
#include "model/parameters.h"
#include "ops/numerics_config.h"

namespace baleen::model {

/// streams [M, n, H] -> the normalised hidden vector [M, H].
at::Tensor head_hidden(const at::Tensor& streams,
                       const HeadParameters& params,
                       const ModelConfig& config,
                       const ops::Numerics& numerics);

/// streams [M, n, H] -> logits [M, V], not rounded.
at::Tensor head_logits(const at::Tensor& streams,
                       const HeadParameters& params,
                       const at::Tensor& output_matrix,
                       const ModelConfig& config,
                       const ops::Numerics& numerics);

}  // namespace baleen::model
