#include "weights/toy_parameters.h"

namespace baleen::weights {

ModelConfig toy_config() {
  ModelConfig config;
  config.vocab_size = 32;
  config.hidden_size = 16;
  config.num_hidden_layers = 4;
  config.num_nextn_predict_layers = 1;
  config.num_attention_heads = 4;
  config.head_dim = 16;
  config.qk_rope_head_dim = 8;
  config.q_lora_rank = 10;
  config.o_groups = 2;
  config.o_lora_rank = 6;
  config.sliding_window = 8;
  config.index_n_heads = 3;
  config.index_head_dim = 16;
  config.index_topk = 3;
  config.n_routed_experts = 6;
  config.num_experts_per_tok = 2;
  config.n_shared_experts = 1;
  config.moe_intermediate_size = 12;
  config.routed_scaling_factor = 1.5;
  config.swiglu_limit = 0.7;
  config.hc_mult = 4;
  config.hc_sinkhorn_iters = 20;
  config.yarn = YarnConfig{16.0, 65536, 32.0, 1.0};
  config.max_position_embeddings = 1048576;
  config.layers = {{LayerKind::kSwa, 0, true},
                   {LayerKind::kC4, 4, false},
                   {LayerKind::kC128, 16, false},
                   {LayerKind::kC4, 4, false},
                   {LayerKind::kSwa, 0, false}};
  return config;
}

uint32_t fnv1a(std::string_view text) {
  uint32_t hash = 0x811C9DC5U;
  for (const char letter : text) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x01000193U;
  }
  return hash;
}

double toy_parameter(std::string_view name, int64_t index) {
  uint32_t hash = fnv1a(name) + static_cast<uint32_t>(index) * 0x9E3779B1U;
  hash ^= hash >> 16;
  hash *= 0x85EBCA6BU;
  hash ^= hash >> 13;
  hash *= 0xC2B2AE35U;
  hash ^= hash >> 16;
  const double value = 2.0 * (static_cast<double>(hash >> 8) * 0x1p-24 - 0.5);
  if (name.ends_with("norm.weight")) {
    return 1.0 + value / 4.0;
  }
  return name == "embed.weight" ? value : value / 2.0;
}

int64_t toy_expert(int64_t token, int64_t place, int64_t num_experts) {
  return (5 * token + 1 + 2 * place) % num_experts;
}

}  // namespace baleen::weights
