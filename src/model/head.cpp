#include "model/head.h"

#include "model/hyper_connection.h"
#include "ops/linear.h"
#include "ops/rms_norm.h"

namespace baleen::model {

at::Tensor head_hidden(const at::Tensor& streams,
                       const HeadParameters& params,
                       const ModelConfig& config,
                       const ops::Numerics& numerics) {
  const at::Tensor collapsed =
      ops::hc_head(streams, hc_weights(params.hc), hc_config(config), numerics);
  return ops::rms_norm(collapsed, params.norm, config.rms_norm_eps, numerics);
}

at::Tensor head_logits(const at::Tensor& streams,
                       const HeadParameters& params,
                       const at::Tensor& output_matrix,
                       const ModelConfig& config,
                       const ops::Numerics& numerics) {
  return ops::linear_unrounded(
      head_hidden(streams, params, config, numerics), output_matrix, numerics);
}

}  // namespace baleen::model
