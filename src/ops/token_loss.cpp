#include "ops/token_loss.h"

#include <span>

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include "kernels/sampling/sampling.h"
#include "ops/invariant.h"
#include "ops/needs_gradient.h"

namespace baleen::ops {
namespace {

constexpr int64_t kTokensPerTask = 16;

at::Tensor logprobs_by_kernel(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor rows = logits.contiguous();
  const at::Tensor ids = targets.contiguous();
  const int64_t vocab = logits.size(-1);
  at::Tensor logprobs = at::empty(ids.sizes(), rows.options());
  AT_DISPATCH_FLOATING_TYPES(rows.scalar_type(), "token_logprobs", [&] {
    at::parallel_for(0, ids.numel(), kTokensPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const std::span<const scalar_t> row(rows.const_data_ptr<scalar_t>() + t * vocab,
                                            static_cast<std::size_t>(vocab));
        logprobs.mutable_data_ptr<scalar_t>()[t] =
            kernels::plain_logprob(row, static_cast<int32_t>(ids.const_data_ptr<int64_t>()[t]));
      }
    });
  });
  return logprobs;
}

}  // namespace

at::Tensor token_logprobs(const at::Tensor& logits,
                          const at::Tensor& targets,
                          Summation summation) {
  const auto by_tensors = [&] {
    return at::log_softmax(logits, -1).gather(-1, targets.unsqueeze(-1)).squeeze(-1);
  };
  if (summation == Summation::kInvariant) {
    return invariant_value(logits, needs_gradient(logits), by_tensors, [&] {
      return logprobs_by_kernel(logits, targets);
    });
  }
  return by_tensors();
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets, Summation summation) {
  return token_logprobs(logits, targets.clamp_min(0), summation)
      .neg()
      .masked_fill(targets.lt(0), 0.0);
}

}  // namespace baleen::ops
