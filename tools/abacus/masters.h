#pragma once
// The trained parameters: unrounded float32 values in two flat leaf tensors, one with weight decay
// and one without, so that an optimizer step is a handful of operations instead of thousands. The
// model sees them through differentiable views. Owned by the training program; one thread.
//
//   Masters masters(config, seed, device);
//   ModelParameters params = masters.views();      // before every forward
//   torch::optim::AdamW over masters.decayed(), masters.undecayed()

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/model_config.h"
#include "model/parameters.h"

namespace baleen::abacus {

class Masters {
 public:
  /// Fresh values by seed; the same on every device.
  Masters(const ModelConfig& config, uint64_t seed, at::Device device);

  /// Takes over the values of a model of the same configuration, on the CPU; its tables too.
  void take(const model::ModelParameters& params);

  /// Every trainable field is a view of a flat leaf; router biases and the hash table are plain
  /// tensors shared with this object.
  model::ModelParameters views() const;

  const at::Tensor& decayed() const { return flat_[0]; }    // matrices
  const at::Tensor& undecayed() const { return flat_[1]; }  // norms, mixing, sinks, position biases
  /// [E] of each layer that routes by score, main layers then MTP; written by the balance rule.
  const std::vector<at::Tensor>& router_biases() const { return router_biases_; }

 private:
  model::ModelParameters layout_;  // shapes, formats, and the tensors that are not trained
  at::Tensor flat_[2];
  std::vector<int64_t> sizes_[2];  // elements per parameter, in visiting order
  std::vector<at::Tensor> router_biases_;
};

}  // namespace baleen::abacus
