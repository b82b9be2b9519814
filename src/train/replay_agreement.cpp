#include "train/replay_agreement.h"

#include <ATen/ATen.h>

#include "ops/indexer.h"
#include "ops/router.h"

namespace baleen::train {
namespace {

double sum_of(const at::Tensor& values, const at::Tensor& real) {
  return (values.to(at::kDouble) * real).sum().item<double>();
}

/// experts i64 [N, k], scores [N, E], real [N].
void add_routes(const at::Tensor& experts,
                const at::Tensor& scores,
                const at::Tensor& bias,
                const at::Tensor& real,
                ReplayAgreement& out) {
  const int64_t k = experts.size(1);
  const int64_t all = scores.size(1);
  const at::Tensor ranked = ops::route_by_score(scores, bias, all < k + 1 ? k : k + 1);
  const at::Tensor own = ranked.narrow(1, 0, k);
  const at::Tensor equal = experts.unsqueeze(2).eq(own.unsqueeze(1)).any(2).sum(1);
  const double tokens = real.sum().item<double>();
  out.experts_equal += sum_of(equal, real);
  out.num_experts += tokens * static_cast<double>(k);
  out.num_routes += tokens;
  if (all > k) {
    const at::Tensor biased = bias.defined() ? scores + bias : scores;
    const at::Tensor edge = biased.gather(1, ranked.narrow(1, k - 1, 2));
    out.margins += sum_of(edge.select(1, 0) - edge.select(1, 1), real);
  }
}

/// given bool [B, T, E], scores [B, T, E], real [B, T].
void add_picks(const at::Tensor& given,
               const at::Tensor& scores,
               int64_t ratio,
               int64_t topk,
               const at::Tensor& real,
               ReplayAgreement& out) {
  const at::Tensor own = ops::indexer_pick_mask(scores, 0, ratio, topk);
  const at::Tensor common = given.logical_and(own).sum(-1).to(at::kDouble);
  const at::Tensor either = given.logical_or(own).sum(-1).to(at::kDouble).clamp_min(1.0);
  const int64_t tokens = scores.size(1);
  const at::Tensor visible = at::floor_divide(at::arange(1, tokens + 1, real.options()), ratio);
  const at::Tensor chosen = real * visible.gt(static_cast<double>(topk)).unsqueeze(0);
  out.jaccards += sum_of(common / either, chosen);
  out.num_sets += chosen.sum().item<double>();
}

}  // namespace

void ReplayAgreement::add(const ReplayAgreement& more) {
  experts_equal += more.experts_equal;
  num_experts += more.num_experts;
  margins += more.margins;
  num_routes += more.num_routes;
  jaccards += more.jaccards;
  num_sets += more.num_sets;
}

ReplayAgreement replay_agreement(const model::ModelParameters& params,
                                 const PackedBatch& batch,
                                 const model::ChoicesByLayer& given,
                                 const model::Taps& taps) {
  const at::NoGradGuard no_grad;
  const at::Tensor real = batch.real.to(at::kDouble);
  ReplayAgreement out;
  for (std::size_t layer = 0; layer < params.blocks.size(); ++layer) {
    const model::BlockParameters& block = params.blocks[layer];
    const model::LayerTaps& of_layer = taps.layers.at(layer);
    const model::LayerChoices& taken = given.at(layer);
    if (taken.experts.defined() && of_layer.router_scores.defined()) {
      add_routes(
          taken.experts, of_layer.router_scores.detach(), block.moe.gate_bias.detach(), real, out);
    }
    for (std::size_t g = 0; g < taken.picks.size(); ++g) {
      if (g >= of_layer.index_scores.size() || !of_layer.index_scores[g].defined() ||
          !taken.picks[g].defined()) {
        continue;
      }
      const model::SequenceGroup& group = batch.groups[g];
      int64_t row_begin = 0;
      for (std::size_t before = 0; before < g; ++before) {
        row_begin += batch.groups[before].num_rows();
      }
      add_picks(taken.picks[g],
                of_layer.index_scores[g].detach(),
                block.spec.ratio,
                params.config.index_topk,
                real.narrow(0, row_begin, group.num_rows()).view({group.batch, group.tokens}),
                out);
    }
  }
  return out;
}

}  // namespace baleen::train
