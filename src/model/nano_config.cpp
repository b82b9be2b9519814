#include "model/nano_config.h"

namespace baleen::model {

ModelConfig nano_config(const NanoOptions& options) {
  ModelConfig config;
  config.vocab_size = 32;
  config.hidden_size = 64;
  config.num_hidden_layers = 4;
  config.num_nextn_predict_layers = options.with_mtp ? 1 : 0;
  config.num_attention_heads = 4;
  config.head_dim = 32;
  config.qk_rope_head_dim = 8;
  config.q_lora_rank = 32;
  config.o_groups = options.o_groups;
  config.o_lora_rank = 32 / options.o_groups;
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
  config.yarn = YarnConfig{};
  config.max_position_embeddings = 4096;
  config.bos_token_id = 0;
  config.eos_token_id = 1;
  config.layers = {{LayerKind::kSwa, 0, true},
                   {LayerKind::kC4, 4, false},
                   {LayerKind::kC128, 8, false},
                   {LayerKind::kC4, 4, false}};
  if (options.with_mtp) {
    config.layers.push_back({LayerKind::kSwa, 0, false});
  }
  return config;
}

}  // namespace baleen::model
