#include "model/hash_fill.h"

#include <string>
#include <vector>

#include <ATen/ops/empty.h>

namespace baleen::model {
namespace {

uint32_t fnv1a(std::string_view name) {
  uint32_t hash = 0x811C9DC5U;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x01000193U;
  }
  return hash;
}

double mixed(uint32_t hash, uint32_t index) {
  uint32_t h = hash + index * 0x9E3779B1U;
  h ^= h >> 16;
  h *= 0x85EBCA6BU;
  h ^= h >> 13;
  h *= 0xC2B2AE35U;
  h ^= h >> 16;
  return 2.0 * (static_cast<double>(h >> 8) / 16777216.0 - 0.5);
}

}  // namespace

double hash_fill_value(std::string_view name, uint32_t index) {
  return mixed(fnv1a(name), index);
}

ModelParameters make_hash_filled(const ModelConfig& config,
                                 const HashFill& fill,
                                 const at::TensorOptions& options) {
  ModelParameters params = make_empty_parameters(config);
  fill_parameters(
      params,
      options,
      [&](const ParameterInfo& info, const std::string& name, const std::vector<int64_t>& shape) {
        if (info.role == ParameterRole::kHashTable) {
          at::Tensor table = at::empty(shape, at::kLong);
          int64_t* data = table.data_ptr<int64_t>();
          for (int64_t i = 0; i < table.numel(); ++i) {
            const int64_t token = i / shape[1];
            const int64_t slot = i % shape[1];
            data[i] = (5 * token + 1 + 2 * slot) % config.n_routed_experts;
          }
          return table;
        }
        const double offset = info.role == ParameterRole::kNorm ? 1.0 : 0.0;
        const double scale = info.role == ParameterRole::kNorm        ? fill.norm
                             : info.role == ParameterRole::kEmbedding ? fill.embedding
                                                                      : fill.other;
        at::Tensor value = at::empty(shape, at::kDouble);
        double* data = value.data_ptr<double>();
        const uint32_t hash = fnv1a(fill.salt + name);
        for (int64_t i = 0; i < value.numel(); ++i) {
          data[i] = offset + scale * mixed(hash, static_cast<uint32_t>(i));
        }
        return value;
      });
  return params;
}

ModelConfig golden_toy_config() {
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
  config.hc_eps = 1e-6;
  config.rms_norm_eps = 1e-6;
  config.rope_theta = 10000.0;
  config.compress_rope_theta = 160000.0;
  config.yarn = YarnConfig{};
  config.max_position_embeddings = 1048576;
  config.layers = {{LayerKind::kSwa, 0, true},
                   {LayerKind::kC4, 4, false},
                   {LayerKind::kC128, 16, false},
                   {LayerKind::kC4, 4, false},
                   {LayerKind::kSwa, 0, false}};
  return config;
}

}  // namespace baleen::model
