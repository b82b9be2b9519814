#pragma once
// Log-probabilities and cross-entropy of next tokens, in the dtype of the logits.
//
//   at::Tensor loss = ops::cross_entropy(logits, targets).mean();

#include <ATen/core/Tensor.h>

namespace baleen::ops {

/// logits [..., V], targets int64 [...] -> log softmax at the target [...].
at::Tensor token_logprobs(const at::Tensor& logits, const at::Tensor& targets);

/// -token_logprobs; 0 with no gradient where the target is negative (a token that is not trained).
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets);

}  // namespace baleen::ops
