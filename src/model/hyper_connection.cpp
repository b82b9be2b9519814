#include "model/hyper_connection.h"

#include "ops/rms_norm.h"

namespace baleen::model {

ops::HcWeights hc_weights(const HyperConnectionParameters& params) {
  return {.fn = params.fn, .base = params.base, .scale = params.scale};
}

ops::HcConfig hc_config(const ModelConfig& config) {
  return {.rms_norm_eps = config.rms_norm_eps,
          .hc_eps = config.hc_eps,
          .sinkhorn_iters = config.hc_sinkhorn_iters};
}

at::Tensor through_hyper_connection(const at::Tensor& streams,
                                    const HyperConnectionParameters& hc,
                                    const at::Tensor& norm,
                                    const StepContext& step,
                                    const std::string& name,
                                    const std::function<at::Tensor(const at::Tensor&)>& sub_layer) {
  const ops::HcMix mix =
      ops::hc_pre(streams, hc_weights(hc), hc_config(step.config), step.numerics);
  step.capture(name, ".post", mix.post);
  step.capture(name, ".comb", mix.comb);
  const at::Tensor input = ops::rms_norm(mix.y, norm, step.config.rms_norm_eps, step.numerics);
  return ops::hc_post(sub_layer(input), streams, mix.post, mix.comb, step.numerics);
}

}  // namespace baleen::model
