#pragma once
// Wiring of one sub-layer into the residual streams: mix the streams into its input, normalise, run
// it, spread its output over the streams again. There is no other residual addition.
//
//   streams = through_hyper_connection(streams, hc, norm, step, "layers.0.hc_attn",
//                                      [&](const at::Tensor& y) { return attention(y); });

#include <functional>
#include <string>

#include <ATen/core/Tensor.h>

#include "model/context.h"
#include "model/parameters.h"
#include "ops/hyper_connection.h"

namespace baleen::model {

ops::HcWeights hc_weights(const HyperConnectionParameters& params);
ops::HcConfig hc_config(const ModelConfig& config);

/// streams [N, n, H] -> [N, n, H]; `sub_layer` maps the normalised mix [N, H] to [N, H].
at::Tensor through_hyper_connection(const at::Tensor& streams,
                                    const HyperConnectionParameters& hc,
                                    const at::Tensor& norm,
                                    const StepContext& step,
                                    const std::string& name,
                                    const std::function<at::Tensor(const at::Tensor&)>& sub_layer);

}  // namespace baleen::model
