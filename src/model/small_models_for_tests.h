#pragma once
// Small random models and runs of them, shared by the tests of this room.
//
//   ModelParameters params = small_model(small_config({0, 4, 128}), at::kDouble);

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "model/initialize.h"
#include "model/whole_model.h"

namespace baleen::model {

/// Window 128 and the published ratios; the first layer is hash-routed; one MTP block.
inline ModelConfig small_config(const std::vector<int64_t>& ratios) {
  ModelConfig config;
  config.vocab_size = 40;
  config.hidden_size = 24;
  config.num_hidden_layers = static_cast<int64_t>(ratios.size());
  config.num_nextn_predict_layers = 1;
  config.num_attention_heads = 4;
  config.head_dim = 16;
  config.qk_rope_head_dim = 8;
  config.q_lora_rank = 12;
  config.o_groups = 2;
  config.o_lora_rank = 6;
  config.sliding_window = 128;
  config.index_n_heads = 2;
  config.index_head_dim = 16;
  config.index_topk = 20;
  config.n_routed_experts = 4;
  config.num_experts_per_tok = 2;
  config.n_shared_experts = 1;
  config.moe_intermediate_size = 12;
  config.routed_scaling_factor = 1.5;
  config.swiglu_limit = 2.0;
  config.hc_mult = 4;
  config.hc_sinkhorn_iters = 20;
  config.yarn = YarnConfig{};
  config.max_position_embeddings = 4096;
  for (const int64_t ratio : ratios) {
    const LayerKind kind = ratio == 0   ? LayerKind::kSwa
                           : ratio == 4 ? LayerKind::kC4
                                        : LayerKind::kC128;
    config.layers.push_back({kind, ratio, config.layers.empty()});
  }
  config.layers.push_back({LayerKind::kSwa, 0, false});
  return config;
}

/// Weights large enough that every part of the model matters to the logits.
inline ModelParameters small_model(const ModelConfig& config, at::ScalarType dtype) {
  return make_fresh_parameters(
      config, {.seed = 7, .matrix_std = 0.25, .vector_noise = 0.2}, at::TensorOptions(dtype));
}

/// Pseudo-random ids without repetition patterns of short period.
inline at::Tensor some_ids(int64_t count, int64_t vocab_size, int64_t salt = 0) {
  at::Tensor ids = at::empty({count}, at::kLong);
  uint64_t state = 0x9E3779B97F4A7C15ULL + static_cast<uint64_t>(salt);
  for (int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    ids.data_ptr<int64_t>()[i] =
        static_cast<int64_t>((state >> 33) % static_cast<uint64_t>(vocab_size));
  }
  return ids;
}

inline double max_difference(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() == 0 ? 0.0 : (a - b).abs().max().item<double>();
}

}  // namespace baleen::model
