#include "model/moe.h"

#include <optional>

#include "model/choices.h"
#include "ops/experts.h"
#include "ops/rounding.h"
#include "ops/router.h"

namespace baleen::model {

at::Tensor mixture_of_experts(const at::Tensor& x,
                              const MoeParameters& params,
                              const LayerSpec& spec,
                              const BlockPlace& place,
                              const StepContext& step) {
  const ModelConfig& config = step.config;
  const ops::Numerics& numerics = step.numerics;
  const at::Tensor scores = ops::router_scores(x, params.gate_weight, numerics);
  const at::Tensor given =
      step.given == nullptr ? at::Tensor() : step.given->at(place.layer(config)).experts;
  const at::Tensor experts =
      given.defined() ? given
      : spec.hash_routed
          ? ops::route_by_table(params.tid2eid, step.ids)
          : ops::route_by_score(scores, params.gate_bias, config.num_experts_per_tok);
  if (step.made != nullptr) {
    step.made->at(place.layer(config)).experts = experts;
  }
  const at::Tensor weights =
      ops::route_weights(scores, experts, config.routed_scaling_factor, numerics);
  step.capture(place.prefix, "ffn.input", x);
  step.capture(place.prefix, "ffn.scores", scores);
  step.capture(place.prefix, "ffn.experts", experts);
  step.capture(place.prefix, "ffn.weights", weights);
  if (step.taps != nullptr && step.taps->routing) {
    LayerTaps& taps = place.taps_of(*step.taps, config);
    taps.router_experts = experts;
    taps.router_scores = scores;
  }

  if (step.choices != nullptr && !spec.hash_routed) {
    step.choices->experts.push_back(experts);
  }

  const ops::ExpertWeights matrices{
      .w1 = params.w1.weight, .w3 = params.w3.weight, .w2 = params.w2.weight};
  const at::Tensor routed =
      step.parallel == nullptr
          ? ops::routed_experts(
                x, experts, weights, matrices, params.w1.format, config.swiglu_limit, numerics)
          : step.parallel->routed_experts(
                x, experts, weights, matrices, params.w1.format, config.swiglu_limit, numerics);
  const std::optional<double> shared_limit =
      numerics.shared_expert_clamp ? std::optional<double>(config.swiglu_limit) : std::nullopt;
  const at::Tensor shared = ops::swiglu_expert(x,
                                               params.shared_w1.weight,
                                               params.shared_w3.weight,
                                               params.shared_w2.weight,
                                               params.shared_w1.format,
                                               shared_limit,
                                               numerics);
  const at::Tensor output = ops::store_activation(routed + shared, numerics);
  step.capture(place.prefix, "ffn.output", output);
  return output;
}

}  // namespace baleen::model
