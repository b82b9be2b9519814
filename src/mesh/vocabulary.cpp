#include "mesh/vocabulary.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/check.h"
#include "mesh/collectives.h"

namespace baleen::mesh {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// d logprob / dz_v = 1[v = y] - p_v, d entropy / dz_v = -p_v (log p_v + entropy).
class VocabularyLogprobs : public torch::autograd::Function<VocabularyLogprobs> {
 public:
  static variable_list forward(AutogradContext* ctx,
                               const at::Tensor& logits,
                               const at::Tensor& targets,
                               int64_t first_column,
                               comm::Group* group) {
    at::Tensor maximum = logits.amax(-1);
    maximum_in_place(maximum, *group);
    const at::Tensor shifted = logits - maximum.unsqueeze(-1);
    const at::Tensor e = shifted.exp();
    const at::Tensor column = targets - first_column;
    const at::Tensor absent = column.lt(0).logical_or(column.ge(logits.size(-1)));
    const at::Tensor own = shifted.gather(-1, column.masked_fill(absent, 0).unsqueeze(-1))
                               .squeeze(-1)
                               .masked_fill(absent, 0.0);
    at::Tensor sums = at::stack({e.sum(-1), (e * shifted).sum(-1), own}, 0);  // [3, M]
    sum_in_place(sums, *group);
    const at::Tensor log_sum = sums[0].log();
    const at::Tensor entropy = log_sum - sums[1] / sums[0];
    const at::Tensor log_p = shifted - log_sum.unsqueeze(-1);
    ctx->save_for_backward({log_p, column.masked_fill(absent, -1), entropy});
    return {sums[2] - log_sum, entropy};
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &log_p = saved[0], &column = saved[1], &entropy = saved[2];
    const at::Tensor p = log_p.exp();
    const at::Tensor of_logprob = grads[0].unsqueeze(-1);
    at::Tensor dz = -p * (of_logprob + grads[1].unsqueeze(-1) * (log_p + entropy.unsqueeze(-1)));
    const at::Tensor at_target = of_logprob.masked_fill(column.lt(0).unsqueeze(-1), 0.0);
    dz.scatter_add_(-1, column.clamp_min(0).unsqueeze(-1), at_target);
    return {dz, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

TokenLogprobs vocabulary_logprobs(const at::Tensor& logits,
                                  const at::Tensor& targets,
                                  const Part& part,
                                  comm::Group& group) {
  BALEEN_CHECK(logits.dim() == 2 && targets.dim() == 1 && logits.size(0) == targets.size(0) &&
                   logits.size(1) == part.count() && part.count() > 0,
               "{} x {} logits, {} targets, {} columns",
               logits.size(0),
               logits.size(-1),
               targets.size(0),
               part.count());
  const variable_list result = VocabularyLogprobs::apply(logits, targets, part.begin, &group);
  return {.logprobs = result[0], .entropy = result[1]};
}

}  // namespace baleen::mesh
