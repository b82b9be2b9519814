#include "runner/decode/decode_model.h"

#include "kernels/after_projection/after_projection.h"
#include "kernels/hyper_connection/hyper_connection.h"
#include "kernels/step_metadata/step_metadata.h"

namespace baleen::runner {

std::string decode_unsupported(const ModelConfig& config) {
  const auto wants = [](const char* key, int64_t found, int64_t expected) {
    return found == expected ? std::string()
                             : std::string(key) + " " + std::to_string(found) +
                                   " (kernels: " + std::to_string(expected) + ")";
  };
  std::string reason;
  const auto add = [&reason](const std::string& what) {
    if (!what.empty()) {
      reason += (reason.empty() ? "" : ", ") + what;
    }
  };
  add(wants("head_dim", config.head_dim, kernels::kKvDims));
  add(wants("qk_rope_head_dim", config.qk_rope_head_dim, kernels::kKvRopeDims));
  add(wants("sliding_window", config.sliding_window, kernels::kWindowTokens));
  add(wants("hc_mult", config.hc_mult, kernels::kHcStreams));
  add(wants("n_shared_experts", config.n_shared_experts, 1));
  if (config.count_layers(LayerKind::kC4) > 0) {
    add(wants("index_n_heads", config.index_n_heads, kernels::kIndexHeads));
    add(wants("index_head_dim", config.index_head_dim, kernels::kIndexDims));
  }
  if (config.n_routed_experts % 64 != 0) {
    add("n_routed_experts " + std::to_string(config.n_routed_experts) +
        " (kernels: multiples of 64)");
  }
  if (!kernels::hc_fused_sm90_supports(static_cast<int32_t>(config.hidden_size))) {
    add("hidden_size " + std::to_string(config.hidden_size) + " (kernels: 4096, 7168)");
  }
  if (config.q_lora_rank != 1024 && config.q_lora_rank != 1536) {
    add("q_lora_rank " + std::to_string(config.q_lora_rank) + " (kernels: 1024, 1536)");
  }
  return reason;
}

}  // namespace baleen::runner
