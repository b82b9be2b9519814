#pragma once
// A small model with every mechanism of the family, cut-able over up to 8 ranks, shared by the
// tests of this room: two compression ratios, real selection, a hash layer, an MTP block.
//
//   model::ModelParameters whole = nano_mesh_model(at::kDouble);

#include <ATen/core/Tensor.h>

#include "model/initialize.h"
#include "model/nano_config.h"

namespace baleen::mesh {

/// Four output groups, so that heads can be cut four ways.
inline ModelConfig nano_mesh_config() {
  return model::nano_config({.with_mtp = true, .o_groups = 4});
}

inline model::ModelParameters nano_mesh_model(at::ScalarType dtype,
                                              const ModelConfig& config = nano_mesh_config()) {
  return model::make_fresh_parameters(
      config, {.seed = 5, .matrix_std = 0.125, .vector_noise = 0.1}, at::TensorOptions(dtype));
}

}  // namespace baleen::mesh
