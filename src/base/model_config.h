#pragma once
// The shape of a DeepSeek-V4 model. Field names keep the spelling of the published config.json;
// readers of its variants live in weights/config_json.h. Plain data: filled once at start, then
// read by everybody.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace baleen {

/// What a layer attends to besides the window of raw rows. Overlap and indexer belong to the kind,
/// not to the number of the ratio.
enum class LayerKind : uint8_t {
  kSwa,   // window only
  kC4,    // top-k of overlapping compressed entries, chosen by the indexer (published ratio 4)
  kC128,  // all compressed entries, no overlap (published ratio 128)
};

const char* layer_kind_name(LayerKind kind);  // "swa", "c4", "c128"

struct LayerSpec {
  LayerKind kind = LayerKind::kSwa;
  int64_t ratio = 0;         // tokens per compressed entry; 0 for kSwa
  bool hash_routed = false;  // experts come from tid2eid[token id] instead of the scores
};

struct YarnConfig {
  double factor = 16.0;
  int64_t original_max_position_embeddings = 65536;  // tokens
  double beta_fast = 32.0;
  double beta_slow = 1.0;
};

struct QuantizationConfig {
  std::string quant_method = "fp8";
  std::string fmt = "e4m3";
  std::string scale_fmt = "ue8m0";
  int64_t weight_block_rows = 128;
  int64_t weight_block_cols = 128;
};

struct ModelConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_nextn_predict_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t head_dim = 0;
  int64_t qk_rope_head_dim = 0;  // the last dims of a head
  int64_t q_lora_rank = 0;
  int64_t o_groups = 0;
  int64_t o_lora_rank = 0;
  int64_t sliding_window = 0;  // raw rows a query sees, its own included
  int64_t index_n_heads = 0;
  int64_t index_head_dim = 0;
  int64_t index_topk = 0;
  int64_t n_routed_experts = 0;
  int64_t num_experts_per_tok = 0;
  int64_t n_shared_experts = 0;  // only 1 is accepted
  int64_t moe_intermediate_size = 0;
  double routed_scaling_factor = 1.0;
  double swiglu_limit = 0.0;
  int64_t hc_mult = 0;  // residual streams
  int64_t hc_sinkhorn_iters = 0;
  double hc_eps = 1e-6;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;            // kSwa layers and MTP
  double compress_rope_theta = 160000.0;  // kC4 and kC128 layers, with YaRN
  std::optional<YarnConfig> yarn;
  int64_t max_position_embeddings = 0;  // tokens
  int64_t bos_token_id = 0;
  int64_t eos_token_id = 1;
  double initializer_range = 0.02;
  std::optional<QuantizationConfig> quantization_config;
  std::string
      expert_dtype;  // "fp4", "fp8" or empty; the tensors decide, this is only what the file says
  std::vector<LayerSpec> layers;  // num_hidden_layers entries, then one per MTP block (always kSwa)

  const LayerSpec& mtp_layer(int64_t block) const {
    return layers[static_cast<std::size_t>(num_hidden_layers + block)];
  }
  int64_t count_layers(LayerKind kind) const;  // main layers only
};

/// Throws ConfigError naming the key when a value is out of range or two values contradict each
/// other.
void validate(const ModelConfig& config);

}  // namespace baleen
