#pragma once
// Fresh parameters for training and for random-weight tests: normal matrices, zero sinks, position
// biases and mixing biases, norms of one. Every tensor has its own random stream, by seed and name,
// so the values depend on neither order nor the other tensors.
//
//   ModelParameters params = make_fresh_parameters(config, {.seed = 1}, options);

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "model/parameters.h"

namespace baleen::model {

struct FreshOptions {
  uint64_t seed = 0;
  double matrix_std = 0.0;    // 0: config.initializer_range
  double hyper_scale = 1.0;   // of the hyper-connections' dynamic part
  double vector_noise = 0.0;  // standard deviation added to norms, biases, sinks, position biases
  /// By inputs instead of matrix_std: embedding 1, head 0.5 / sqrt(H), experts' w2 0.5 / sqrt(I),
  /// mixing 0.02, every other matrix 1 / sqrt(inputs): activations of unit size from the start.
  bool by_inputs = false;
  double comb_diagonal = 0.0;  // static part of the residual mixing: this times the identity
};

/// The hash table lists distinct experts per token.
ModelParameters make_fresh_parameters(const ModelConfig& config,
                                      const FreshOptions& fresh,
                                      const at::TensorOptions& options);

}  // namespace baleen::model
