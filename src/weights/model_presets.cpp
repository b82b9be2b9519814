#include "weights/model_presets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace baleen::weights {
namespace {

/// Layers from their published ratios (main layers and MTP blocks), the first ones hash-routed.
std::vector<LayerSpec> layers_from(const std::vector<int64_t>& ratios, int64_t num_hash_layers) {
  std::vector<LayerSpec> layers;
  for (const int64_t ratio : ratios) {
    LayerSpec layer;
    layer.ratio = ratio;
    layer.kind = ratio == 0 ? LayerKind::kSwa : ratio == 4 ? LayerKind::kC4 : LayerKind::kC128;
    layer.hash_routed = static_cast<int64_t>(layers.size()) < num_hash_layers;
    layers.push_back(layer);
  }
  return layers;
}

/// `first` for the two first layers, then 4 and 128 in turn, ending on 4; 0 for the MTP block.
std::vector<int64_t> published_ratios(int64_t first, int64_t num_layers) {
  std::vector<int64_t> ratios = {first, first};
  for (int64_t layer = 2; layer < num_layers; ++layer) {
    ratios.push_back(layer % 2 == 0 ? 4 : 128);
  }
  ratios.push_back(0);
  return ratios;
}

}  // namespace

ModelConfig flash_config() {
  ModelConfig config;
  config.vocab_size = 129280;
  config.hidden_size = 4096;
  config.num_hidden_layers = 43;
  config.num_nextn_predict_layers = 1;
  config.num_attention_heads = 64;
  config.head_dim = 512;
  config.qk_rope_head_dim = 64;
  config.q_lora_rank = 1024;
  config.o_groups = 8;
  config.o_lora_rank = 1024;
  config.sliding_window = 128;
  config.index_n_heads = 64;
  config.index_head_dim = 128;
  config.index_topk = 512;
  config.n_routed_experts = 256;
  config.num_experts_per_tok = 6;
  config.n_shared_experts = 1;
  config.moe_intermediate_size = 2048;
  config.routed_scaling_factor = 1.5;
  config.swiglu_limit = 10.0;
  config.hc_mult = 4;
  config.hc_sinkhorn_iters = 20;
  config.hc_eps = 1e-6;
  config.rms_norm_eps = 1e-6;
  config.rope_theta = 10000.0;
  config.compress_rope_theta = 160000.0;
  config.yarn = YarnConfig{16.0, 65536, 32.0, 1.0};
  config.max_position_embeddings = 1048576;
  config.bos_token_id = 0;
  config.eos_token_id = 1;
  config.initializer_range = 0.02;
  config.quantization_config = QuantizationConfig{};
  config.expert_dtype = "fp4";
  config.layers = layers_from(published_ratios(0, config.num_hidden_layers), 3);
  return config;
}

ModelConfig pro_config() {
  ModelConfig config = flash_config();
  config.hidden_size = 7168;
  config.index_topk = 1024;
  config.moe_intermediate_size = 3072;
  config.n_routed_experts = 384;
  config.num_attention_heads = 128;
  config.num_hidden_layers = 61;
  config.o_groups = 16;
  config.q_lora_rank = 1536;
  config.routed_scaling_factor = 2.5;
  config.layers = layers_from(published_ratios(128, config.num_hidden_layers), 3);
  return config;
}

ModelConfig flash_4layer_config() {
  ModelConfig config = flash_config();
  config.num_hidden_layers = 4;
  config.n_routed_experts = 16;
  config.layers = layers_from({0, 4, 128, 4, 0}, 1);
  return config;
}

ModelConfig tiny_config() {
  ModelConfig config = flash_config();
  config.vocab_size = 512;
  config.hidden_size = 128;
  config.num_hidden_layers = 4;
  config.num_attention_heads = 4;
  config.head_dim = 64;
  config.qk_rope_head_dim = 32;
  config.q_lora_rank = 64;
  config.o_groups = 2;
  config.o_lora_rank = 64;
  config.index_n_heads = 4;
  config.index_head_dim = 32;
  config.index_topk = 8;
  config.n_routed_experts = 8;
  config.num_experts_per_tok = 2;
  config.moe_intermediate_size = 64;
  config.max_position_embeddings = 4096;
  config.yarn = YarnConfig{16.0, 256, 32.0, 1.0};
  config.layers = layers_from({0, 4, 128, 4, 0}, 1);
  return config;
}

const std::vector<std::string>& preset_names() {
  static const std::vector<std::string> kNames = {"flash", "pro", "flash-4layer", "tiny"};
  return kNames;
}

ModelConfig preset_config(std::string_view name) {
  if (name == "flash") {
    return flash_config();
  }
  if (name == "pro") {
    return pro_config();
  }
  if (name == "flash-4layer") {
    return flash_4layer_config();
  }
  if (name == "tiny") {
    return tiny_config();
  }
  throw ConfigError(
      fmt::format("config: no preset \"{}\"; known: {}", name, fmt::join(preset_names(), ", ")));
}

}  // namespace baleen::weights
