#pragma once
// One decoder block: attention and mixture of experts, each through its own hyper-connection.
//
//   streams = run_block(streams, params.blocks[i], BlockPlace{"layers.3.", 3}, step);

#include <ATen/core/Tensor.h>

#include "model/context.h"
#include "model/parameters.h"

namespace baleen::model {

/// streams [N, n, H] -> [N, n, H].
at::Tensor run_block(const at::Tensor& streams,
                     const BlockParameters& params,
                     const BlockPlace& place,
                     const StepContext& step);

}  // namespace baleen::model
