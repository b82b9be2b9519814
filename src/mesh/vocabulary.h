#pragma once
// Log-probabilities of next tokens where every tensor rank holds some rows of the output matrix. No
// rank sees all logits of a token: three numbers per token travel.
//
//   at::Tensor hidden = parallel.core_rows(model::head_hidden(...));       // [M, H]
//   at::Tensor logits = ops::linear_unrounded(hidden, head_shard, numerics);  // [M, V / ranks]
//   at::Tensor logprobs = vocabulary_logprobs(logits, targets, part, group).logprobs;

#include <ATen/core/Tensor.h>

#include "comm/group.h"
#include "mesh/part.h"

namespace baleen::mesh {

struct TokenLogprobs {
  at::Tensor logprobs;  // [M], of the targets
  at::Tensor entropy;   // [M], of the whole distribution
};

/// logits [M, part.count()]: columns part.begin ... of the logits, already divided by the
/// temperature; targets i64 [M] in the whole vocabulary. Equal on all ranks; both are
/// differentiable, and backward needs no rank but this.
TokenLogprobs vocabulary_logprobs(const at::Tensor& logits,
                                  const at::Tensor& targets,
                                  const Part& part,
                                  comm::Group& group);

}  // namespace baleen::mesh
