#pragma once
// The MTP block: streams of position i and the token at i + 1 predict the token at i + 2. It has
// its own window of raw rows and shares embedding and output matrix with the main model.
//
//   at::Tensor streams = run_mtp_block(main_streams, params, 0, mtp_step);  // step.ids = next ids

#include <cstddef>

#include <ATen/core/Tensor.h>

#include "model/context.h"
#include "model/parameters.h"

namespace baleen::model {

/// main_streams [N, n, H] of the step's positions; step.ids holds the token AFTER each position,
/// which also is what a hash-routed block would route by. Result [N, n, H].
at::Tensor run_mtp_block(const at::Tensor& main_streams,
                         const ModelParameters& params,
                         std::size_t block,
                         const StepContext& step);

}  // namespace baleen::model
