#include "runner/decode/decode_floor.h"

#include <algorithm>
#include <cmath>

#include "kernels/cache_entry/cache_entry_layout.h"

namespace baleen::runner {
namespace {

/// e4m3 with one UE8M0 per 128 x 128.
double fp8_bytes(int64_t outputs, int64_t inputs) {
  const auto elements = static_cast<double>(outputs) * static_cast<double>(inputs);
  return elements * (1.0 + 1.0 / 16384.0);
}
double fp4_bytes(int64_t outputs, int64_t inputs) {
  const auto elements = static_cast<double>(outputs) * static_cast<double>(inputs);
  return elements * (0.5 + 1.0 / 32.0);
}
double bf16_bytes(int64_t outputs, int64_t inputs) {
  return 2.0 * static_cast<double>(outputs) * static_cast<double>(inputs);
}

}  // namespace

double expected_experts(const ModelConfig& config, int64_t tokens) {
  const auto experts = static_cast<double>(config.n_routed_experts);
  const double missed = 1.0 - static_cast<double>(config.num_experts_per_tok) / experts;
  return experts * (1.0 - std::pow(missed, static_cast<double>(tokens)));
}

double layer_floor_bytes(const ModelConfig& config, const LayerSpec& spec, const DecodeLoad& load) {
  const int64_t hidden = config.hidden_size;
  const int64_t width = config.moe_intermediate_size;
  const int64_t heads = config.num_attention_heads * config.head_dim;
  const int64_t latent = config.o_groups * config.o_lora_rank;
  const int64_t streams = config.hc_mult;
  double bytes = fp8_bytes(config.q_lora_rank, hidden) + fp8_bytes(config.head_dim, hidden) +
                 fp8_bytes(heads, config.q_lora_rank) + fp8_bytes(latent, heads / config.o_groups) +
                 fp8_bytes(hidden, latent);
  bytes += 2.0 * 4.0 * static_cast<double>((2 + streams) * streams * streams * hidden);
  bytes += bf16_bytes(config.n_routed_experts, hidden);
  bytes += expected_experts(config, load.tokens) *
           (2.0 * fp4_bytes(width, hidden) + fp4_bytes(hidden, width));
  bytes += 2.0 * fp8_bytes(width, hidden) + fp8_bytes(hidden, width);
  constexpr double kRow = kernels::kKvValueBytes + kernels::kKvScaleBytes;
  const auto tokens = static_cast<double>(load.tokens);
  bytes += tokens * kRow * static_cast<double>(std::min(config.sliding_window, load.context + 1));
  const int64_t entries = spec.ratio == 0 ? 0 : (load.context + 1) / spec.ratio;
  if (spec.kind == LayerKind::kC4) {
    bytes +=
        bf16_bytes(4 * config.head_dim, hidden) + bf16_bytes(4 * config.index_head_dim, hidden);
    bytes += bf16_bytes(config.index_n_heads, hidden);
    bytes += fp8_bytes(config.index_n_heads * config.index_head_dim, config.q_lora_rank);
    bytes += tokens * kRow * static_cast<double>(std::min(config.index_topk, entries));
    bytes += tokens * static_cast<double>(kernels::kIndexDims + kernels::kIndexScaleBytes) *
             static_cast<double>(entries);
  } else if (spec.kind == LayerKind::kC128) {
    bytes += bf16_bytes(2 * config.head_dim, hidden);
    bytes += tokens * kRow * static_cast<double>(entries);
  }
  return bytes;
}

double layer_token_flop(const ModelConfig& config, const LayerSpec& spec) {
  const auto product = [](int64_t outputs, int64_t inputs) {
    return 2.0 * static_cast<double>(outputs) * static_cast<double>(inputs);
  };
  const int64_t hidden = config.hidden_size;
  const int64_t heads = config.num_attention_heads * config.head_dim;
  const int64_t latent = config.o_groups * config.o_lora_rank;
  const int64_t streams = config.hc_mult;
  double flop = product(config.q_lora_rank + config.head_dim, hidden) +
                product(heads, config.q_lora_rank) + product(latent, heads / config.o_groups) +
                product(hidden, latent) + product(config.n_routed_experts, hidden) +
                product(2 * (2 + streams) * streams, streams * hidden);
  flop += static_cast<double>(config.num_experts_per_tok + 1) *
          product(3 * config.moe_intermediate_size, hidden);
  if (spec.kind == LayerKind::kC4) {
    flop += product(4 * (config.head_dim + config.index_head_dim) + config.index_n_heads, hidden) +
            product(config.index_n_heads * config.index_head_dim, config.q_lora_rank);
  } else if (spec.kind == LayerKind::kC128) {
    flop += product(2 * config.head_dim, hidden);
  }
  return flop;
}

double ends_floor_bytes(const ModelConfig& config, const DecodeLoad& load) {
  return bf16_bytes(config.vocab_size, config.hidden_size) +
         bf16_bytes(load.tokens, config.hidden_size) +
         4.0 * static_cast<double>(config.hc_mult * config.hc_mult * config.hidden_size);
}

}  // namespace baleen::runner
