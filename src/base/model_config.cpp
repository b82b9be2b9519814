#include "base/model_config.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"

namespace baleen {
namespace {

void require(bool condition, const std::string& message) {
  if (!condition) {
    throw ConfigError("config: " + message);
  }
}

void require_positive(int64_t value, const char* key) {
  require(value > 0, fmt::format("{} must be positive, got {}", key, value));
}

void require_divides(int64_t part, const char* part_key, int64_t whole, const char* whole_key) {
  require(whole % part == 0,
          fmt::format("{} ({}) must divide {} ({})", part_key, part, whole_key, whole));
}

}  // namespace

const char* layer_kind_name(LayerKind kind) {
  switch (kind) {
    case LayerKind::kSwa:
      return "swa";
    case LayerKind::kC4:
      return "c4";
    case LayerKind::kC128:
      return "c128";
  }
  return "unknown";
}

int64_t ModelConfig::count_layers(LayerKind kind) const {
  return std::count_if(layers.begin(),
                       layers.begin() + num_hidden_layers,
                       [kind](const LayerSpec& layer) { return layer.kind == kind; });
}

void validate(const ModelConfig& config) {
  require_positive(config.vocab_size, "vocab_size");
  require_positive(config.hidden_size, "hidden_size");
  require_positive(config.num_hidden_layers, "num_hidden_layers");
  require(config.num_nextn_predict_layers >= 0,
          fmt::format("num_nextn_predict_layers must not be negative, got {}",
                      config.num_nextn_predict_layers));
  require_positive(config.num_attention_heads, "num_attention_heads");
  require_positive(config.head_dim, "head_dim");
  require_positive(config.q_lora_rank, "q_lora_rank");
  require_positive(config.o_groups, "o_groups");
  require_positive(config.o_lora_rank, "o_lora_rank");
  require_positive(config.sliding_window, "sliding_window");
  require_positive(config.n_routed_experts, "n_routed_experts");
  require_positive(config.num_experts_per_tok, "num_experts_per_tok");
  require_positive(config.moe_intermediate_size, "moe_intermediate_size");
  require_positive(config.hc_mult, "hc_mult");
  require_positive(config.hc_sinkhorn_iters, "hc_sinkhorn_iters");
  require_positive(config.max_position_embeddings, "max_position_embeddings");
  require(config.n_shared_experts == 1,
          fmt::format("n_shared_experts must be 1, got {}", config.n_shared_experts));
  require(config.qk_rope_head_dim > 0 && config.qk_rope_head_dim % 2 == 0 &&
              config.qk_rope_head_dim <= config.head_dim,
          fmt::format("qk_rope_head_dim must be even, positive and at most head_dim ({}), got {}",
                      config.head_dim,
                      config.qk_rope_head_dim));
  require(config.num_experts_per_tok <= config.n_routed_experts,
          fmt::format("num_experts_per_tok ({}) exceeds n_routed_experts ({})",
                      config.num_experts_per_tok,
                      config.n_routed_experts));
  require(config.swiglu_limit > 0.0,
          fmt::format("swiglu_limit must be positive, got {}", config.swiglu_limit));
  require_divides(config.o_groups, "o_groups", config.num_attention_heads, "num_attention_heads");
  const auto expected_layers =
      static_cast<std::size_t>(config.num_hidden_layers + config.num_nextn_predict_layers);
  require(config.layers.size() == expected_layers,
          fmt::format("compress_ratios describes {} layers, expected {} (num_hidden_layers {} + "
                      "num_nextn_predict_layers {})",
                      config.layers.size(),
                      expected_layers,
                      config.num_hidden_layers,
                      config.num_nextn_predict_layers));
  for (const LayerSpec& layer : config.layers) {
    require((layer.kind == LayerKind::kSwa) == (layer.ratio == 0),
            fmt::format("compress_ratios: a {} layer cannot have ratio {}",
                        layer_kind_name(layer.kind),
                        layer.ratio));
    if (layer.kind == LayerKind::kC4) {
      require_positive(config.index_n_heads, "index_n_heads");
      require_positive(config.index_topk, "index_topk");
      const int64_t width = config.index_head_dim;
      require(width > 0 && (width & (width - 1)) == 0,
              fmt::format("index_head_dim must be a power of two, got {}", width));
      require(width >= config.qk_rope_head_dim,
              fmt::format("index_head_dim ({}) is smaller than qk_rope_head_dim ({})",
                          width,
                          config.qk_rope_head_dim));
    }
  }
  for (int64_t block = 0; block < config.num_nextn_predict_layers; ++block) {
    require(config.mtp_layer(block).kind == LayerKind::kSwa && !config.mtp_layer(block).hash_routed,
            fmt::format("compress_ratios: entry {} belongs to an MTP block and must be 0, got {}",
                        config.num_hidden_layers + block,
                        config.mtp_layer(block).ratio));
  }
}

}  // namespace baleen
