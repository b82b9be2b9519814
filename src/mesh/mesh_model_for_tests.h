#pragma once
// A small model with every mechanism of the family, cut-able over up to 8 ranks, shared by the
// tests of this room: two compression ratios, real selection, a hash layer, an MTP block.
//
//   model::ModelParameters whole = nano_mesh_model(at::kDouble);

#include <ATen/core/Tensor.h>

#include "model/initialize.h"

namespace baleen::mesh {

inline ModelConfig nano_mesh_config() {
  ModelConfig config;
  config.vocab_size = 32;
  config.hidden_size = 64;
  config.num_hidden_layers = 4;
  config.num_nextn_predict_layers = 1;
  config.num_attention_heads = 4;
  config.head_dim = 32;
  config.qk_rope_head_dim = 8;
  config.q_lora_rank = 32;
  config.o_groups = 4;
  config.o_lora_rank = 8;
  config.sliding_window = 8;
  config.index_n_heads = 2;
  config.index_head_dim = 16;
  config.index_topk = 2;
  config.n_routed_experts = 8;
  config.num_experts_per_tok = 2;
  config.n_shared_experts = 1;
  config.moe_intermediate_size = 64;
  config.routed_scaling_factor = 1.5;
  config.swiglu_limit = 10.0;
  config.hc_mult = 4;
  config.hc_sinkhorn_iters = 8;
  config.max_position_embeddings = 2048;
  config.layers = {{LayerKind::kSwa, 0, true},
                   {LayerKind::kC4, 4, false},
                   {LayerKind::kC128, 8, false},
                   {LayerKind::kC4, 4, false},
                   {LayerKind::kSwa, 0, false}};
  return config;
}

inline model::ModelParameters nano_mesh_model(at::ScalarType dtype,
                                              const ModelConfig& config = nano_mesh_config()) {
  return model::make_fresh_parameters(
      config, {.seed = 5, .matrix_std = 0.125, .vector_noise = 0.1}, at::TensorOptions(dtype));
}

}  // namespace baleen::mesh
