#include "ops/token_loss.h"

#include <ATen/ATen.h>

namespace baleen::ops {

at::Tensor token_logprobs(const at::Tensor& logits, const at::Tensor& targets) {
  return at::log_softmax(logits, -1).gather(-1, targets.unsqueeze(-1)).squeeze(-1);
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets) {
  return token_logprobs(logits, targets.clamp_min(0)).neg().masked_fill(targets.lt(0), 0.0);
}

}  // namespace baleen::ops
