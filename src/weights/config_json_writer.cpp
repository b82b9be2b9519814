#include <algorithm>

#include <boost/json.hpp>

#include "weights/config_json.h"
#include "weights/json_text.h"

namespace baleen::weights {
namespace {

namespace json = boost::json;

const char* port_layer_name(LayerKind kind) {
  switch (kind) {
    case LayerKind::kSwa:
      return "sliding_attention";
    case LayerKind::kC4:
      return "compressed_sparse_attention";
    case LayerKind::kC128:
      return "heavily_compressed_attention";
  }
  return "";
}

bool has_published_form(const ModelConfig& config) {
  bool after_hash = false;
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    const LayerSpec& layer = config.layers[i];
    const int64_t published = layer.kind == LayerKind::kC4     ? 4
                              : layer.kind == LayerKind::kC128 ? 128
                                                               : 0;
    if (layer.ratio != published || (after_hash && layer.hash_routed)) {
      return false;
    }
    after_hash = after_hash || !layer.hash_routed;
  }
  return true;
}

void add_layers(const ModelConfig& config, json::object& object) {
  const auto begin = config.layers.begin();
  const auto end = begin + config.num_hidden_layers;
  if (has_published_form(config)) {
    object["num_hash_layers"] =
        std::count_if(begin, end, [](const LayerSpec& layer) { return layer.hash_routed; });
    json::array ratios;
    for (const LayerSpec& layer : config.layers) {
      ratios.emplace_back(layer.ratio);
    }
    object["compress_ratios"] = std::move(ratios);
    return;
  }
  json::array types;
  json::array mlp_types;
  json::object rates;
  for (auto layer = begin; layer != end; ++layer) {
    types.emplace_back(port_layer_name(layer->kind));
    mlp_types.emplace_back(layer->hash_routed ? "hash_moe" : "moe");
    if (layer->kind != LayerKind::kSwa) {
      rates[port_layer_name(layer->kind)] = layer->ratio;
    }
  }
  object["layer_types"] = std::move(types);
  object["compress_rates"] = std::move(rates);
  object["mlp_layer_types"] = std::move(mlp_types);
}

}  // namespace

std::string write_config_json(const ModelConfig& config) {
  json::object object = {
      {"architectures", {"DeepseekV4ForCausalLM"}},
      {"attention_bias", false},
      {"attention_dropout", 0.0},
      {"bos_token_id", config.bos_token_id},
      {"compress_rope_theta", config.compress_rope_theta},
      {"eos_token_id", config.eos_token_id},
  };
  if (!config.expert_dtype.empty()) {
    object["expert_dtype"] = config.expert_dtype;
  }
  object["hc_eps"] = config.hc_eps;
  object["hc_mult"] = config.hc_mult;
  object["hc_sinkhorn_iters"] = config.hc_sinkhorn_iters;
  object["head_dim"] = config.head_dim;
  object["hidden_act"] = "silu";
  object["hidden_size"] = config.hidden_size;
  object["index_head_dim"] = config.index_head_dim;
  object["index_n_heads"] = config.index_n_heads;
  object["index_topk"] = config.index_topk;
  object["initializer_range"] = config.initializer_range;
  object["max_position_embeddings"] = config.max_position_embeddings;
  object["model_type"] = "deepseek_v4";
  object["moe_intermediate_size"] = config.moe_intermediate_size;
  object["n_routed_experts"] = config.n_routed_experts;
  object["n_shared_experts"] = config.n_shared_experts;
  object["norm_topk_prob"] = true;
  object["num_attention_heads"] = config.num_attention_heads;
  object["num_experts_per_tok"] = config.num_experts_per_tok;
  object["num_hidden_layers"] = config.num_hidden_layers;
  object["num_key_value_heads"] = 1;
  object["num_nextn_predict_layers"] = config.num_nextn_predict_layers;
  object["o_groups"] = config.o_groups;
  object["o_lora_rank"] = config.o_lora_rank;
  object["q_lora_rank"] = config.q_lora_rank;
  object["qk_rope_head_dim"] = config.qk_rope_head_dim;
  if (config.quantization_config) {
    const QuantizationConfig& quantization = *config.quantization_config;
    object["quantization_config"] = {
        {"activation_scheme", "dynamic"},
        {"fmt", quantization.fmt},
        {"quant_method", quantization.quant_method},
        {"scale_fmt", quantization.scale_fmt},
        {"weight_block_size", {quantization.weight_block_rows, quantization.weight_block_cols}}};
  }
  object["rms_norm_eps"] = config.rms_norm_eps;
  if (config.yarn) {
    object["rope_scaling"] = {
        {"beta_fast", config.yarn->beta_fast},
        {"beta_slow", config.yarn->beta_slow},
        {"factor", config.yarn->factor},
        {"original_max_position_embeddings", config.yarn->original_max_position_embeddings},
        {"type", "yarn"}};
  }
  object["rope_theta"] = config.rope_theta;
  object["routed_scaling_factor"] = config.routed_scaling_factor;
  object["scoring_func"] = "sqrtsoftplus";
  object["sliding_window"] = config.sliding_window;
  object["swiglu_limit"] = config.swiglu_limit;
  object["tie_word_embeddings"] = false;
  object["topk_method"] = "noaux_tc";
  object["torch_dtype"] = "bfloat16";
  object["use_cache"] = true;
  object["vocab_size"] = config.vocab_size;
  add_layers(config, object);
  return json_object_text(object);
}

}  // namespace baleen::weights
