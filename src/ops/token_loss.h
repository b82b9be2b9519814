#pragma once
// Log-probabilities and cross-entropy of next tokens, in the dtype of the logits.
//
//   at::Tensor loss = ops::cross_entropy(logits, targets, Summation::kFast).mean();

#include <ATen/core/Tensor.h>

#include "ops/numerics_config.h"

namespace baleen::ops {

/// logits [..., V], targets int64 [...] -> log softmax at the target [...]. With kInvariant the
/// value is what the engine reports for the same logits at temperature 1.
at::Tensor token_logprobs(const at::Tensor& logits,
                          const at::Tensor& targets,
                          Summation summation = Summation::kFast);

/// -token_logprobs; 0 with no gradient where the target is negative (a token that is not trained).
at::Tensor cross_entropy(const at::Tensor& logits,
                         const at::Tensor& targets,
                         Summation summation = Summation::kFast);

}  // namespace baleen::ops
