#include "model/row_logprobs.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/check.h"
#include "ops/linear.h"
#include "ops/needs_gradient.h"
#include "ops/token_loss.h"

namespace baleen::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct HeadRows {
  at::Tensor hidden;
  at::Tensor head;
  at::Tensor targets;
};

/// Calls `visit(begin, count)` for each chunk of rows.
template <class Visit>
void walk_chunks(int64_t rows, int64_t chunk_rows, Visit&& visit) {
  const int64_t step = chunk_rows > 0 ? chunk_rows : std::max<int64_t>(rows, 1);
  for (int64_t begin = 0; begin < rows; begin += step) {
    visit(begin, std::min(step, rows - begin));
  }
}

at::Tensor unscaled_logits(const HeadRows& rows,
                           int64_t begin,
                           int64_t count,
                           const LogprobOptions& options) {
  return ops::linear_unrounded(rows.hidden.narrow(0, begin, count), rows.head, options.numerics);
}

at::Tensor chunk_logits(const HeadRows& rows,
                        int64_t begin,
                        int64_t count,
                        const LogprobOptions& options) {
  const at::Tensor logits = unscaled_logits(rows, begin, count, options);
  return options.temperature == 1.0 ? logits : logits / options.temperature;
}

/// As the sampler divides: in double, by the temperature of float32.
at::Tensor sampled_logprobs(const at::Tensor& logits,
                            const at::Tensor& targets,
                            double temperature) {
  return ops::token_logprobs(
      logits.to(at::kDouble).div(static_cast<double>(static_cast<float>(temperature))),
      targets,
      ops::Summation::kInvariant);
}

/// Logarithms and entropies, no graph.
std::pair<at::Tensor, at::Tensor> head_forward(const HeadRows& rows,
                                               const LogprobOptions& options) {
  const at::NoGradGuard no_grad;
  const int64_t count = rows.hidden.size(0);
  at::Tensor logprobs = at::empty({count}, rows.hidden.options());
  at::Tensor entropy = options.entropy ? at::empty_like(logprobs) : at::Tensor();
  walk_chunks(count, options.chunk_rows, [&](int64_t begin, int64_t size) {
    const at::Tensor unscaled = unscaled_logits(rows, begin, size, options);
    const at::Tensor targets = rows.targets.narrow(0, begin, size);
    const at::Tensor logits =
        options.temperature == 1.0 ? unscaled : unscaled / options.temperature;
    logprobs.narrow(0, begin, size)
        .copy_(options.temperature != 1.0 && options.numerics.invariant()
                   ? sampled_logprobs(unscaled, targets, options.temperature)
                   : ops::token_logprobs(logits, targets, options.numerics.summation));
    if (options.entropy) {
      const at::Tensor logs = at::log_softmax(logits, -1);
      entropy.narrow(0, begin, size).copy_((logs.exp() * logs).sum(-1).neg());
    }
  });
  return {std::move(logprobs), std::move(entropy)};
}

/// d loss / d logits / temperature: g (1[v = y] - p_v) - g_H p_v (log p_v + H).
class HeadLogprobs : public torch::autograd::Function<HeadLogprobs> {
 public:
  static variable_list forward(AutogradContext* ctx,
                               const at::Tensor& hidden,
                               const at::Tensor& head,
                               const at::Tensor& targets,
                               const LogprobOptions& options) {
    auto [logprobs, entropy] = head_forward({hidden, head, targets}, options);
    ctx->save_for_backward({hidden, head, targets, entropy});
    ctx->saved_data["chunk_rows"] = options.chunk_rows;
    ctx->saved_data["temperature"] = options.temperature;
    if (options.entropy) {
      return {logprobs, entropy};
    }
    return {logprobs};
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const HeadRows rows{saved[0], saved[1], saved[2]};
    LogprobOptions options;
    options.numerics.summation = ops::Summation::kFast;
    options.chunk_rows = ctx->saved_data["chunk_rows"].toInt();
    options.temperature = ctx->saved_data["temperature"].toDouble();
    const at::Tensor& g_logprob = gradients[0];
    const at::Tensor g_entropy = gradients.size() > 1 ? gradients[1] : at::Tensor();
    at::Tensor d_hidden = at::empty_like(rows.hidden);
    at::Tensor d_head = at::zeros_like(rows.head);
    walk_chunks(rows.hidden.size(0), options.chunk_rows, [&](int64_t begin, int64_t size) {
      const at::Tensor logs = at::log_softmax(chunk_logits(rows, begin, size, options), -1);
      const at::Tensor p = logs.exp();
      at::Tensor dz = at::zeros_like(p);
      if (g_logprob.defined()) {
        const at::Tensor g = g_logprob.narrow(0, begin, size).unsqueeze(-1);
        dz = p * g.neg();
        dz.scatter_add_(-1, rows.targets.narrow(0, begin, size).unsqueeze(-1), g.contiguous());
      }
      if (g_entropy.defined()) {
        const at::Tensor h = saved[3].narrow(0, begin, size).unsqueeze(-1);
        dz = dz - p * (logs + h) * g_entropy.narrow(0, begin, size).unsqueeze(-1);
      }
      dz = dz / options.temperature;
      d_hidden.narrow(0, begin, size).copy_(at::mm(dz, rows.head));
      d_head.addmm_(dz.t(), rows.hidden.narrow(0, begin, size));
    });
    return {d_hidden, d_head, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

RowLogprobs row_logprobs(const at::Tensor& hidden,
                         const at::Tensor& head,
                         const at::Tensor& targets,
                         const LogprobOptions& options) {
  BALEEN_CHECK(hidden.dim() == 2 && head.dim() == 2 && targets.dim() == 1 &&
                   hidden.size(1) == head.size(1) && targets.size(0) == hidden.size(0) &&
                   options.temperature > 0.0,
               "hidden {} x {}, head {} x {}, {} targets, temperature {}",
               hidden.size(0),
               hidden.size(-1),
               head.size(0),
               head.size(-1),
               targets.size(0),
               options.temperature);
  if (!ops::needs_gradient(hidden, head)) {
    auto [logprobs, entropy] = head_forward({hidden, head, targets}, options);
    return {std::move(logprobs), std::move(entropy)};
  }
  const variable_list results = HeadLogprobs::apply(hidden, head, targets, options);
  return {results[0], options.entropy ? results[1] : at::Tensor()};
}

}  // namespace baleen::model
