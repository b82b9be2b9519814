#pragma once
// What a decode pass on kernels reads: the packed weights and pools of a model as device addresses.
// Plain data; the owner of the memory outlives every pass. Torch-free.
//
//   if (const std::string reason = decode_unsupported(config); !reason.empty()) { ... }
//   DecodeModel model{.config = config, .embed = embed, .layers = layers, ...};

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/model_config.h"
#include "kernels/cache_entry/cache_entry_layout.h"
#include "kernels/linear/linear.h"
#include "kernels/step_metadata/step_metadata.h"

namespace baleen::runner {

inline constexpr int32_t kC4Ratio = 4;
inline constexpr int32_t kC128Ratio = 128;
inline constexpr int32_t kC4PageEntries = kernels::kPageTokens / kC4Ratio;  // of a full page
inline constexpr int32_t kC128PageEntries = kernels::kPageTokens / kC128Ratio;
inline constexpr int32_t kActivationScaleBlock = 128;  // inputs that share an activation scale

/// A matrix [outputs, inputs] packed by kernels::pack_weight, with its block scales.
struct DecodeMatrix {
  const void* weight = nullptr;
  const uint8_t* scales = nullptr;  // UE8M0 [ceil(outputs / 128), inputs / 128]; null for bf16
  int32_t outputs = 0;
  int32_t inputs = 0;
  kernels::WeightFormat format = kernels::WeightFormat::kE4m3;
};

/// A hyper-connection and the norm behind it, all float32 (hyper_connection.h).
struct DecodeHyper {
  const float* fn = nullptr;
  const float* base = nullptr;
  const float* scale = nullptr;
  const float* norm = nullptr;
};

struct DecodeCompressor {
  DecodeMatrix rows;           // bf16, values above scores: [2 * row width, hidden]
  const float* ape = nullptr;  // f32 [ratio, row width]
  const float* norm = nullptr;
  float* ring = nullptr;
  int32_t ring_size = 0;  // rows per window page (ratio 4) or per request (ratio 128)
};

struct DecodeExperts {
  const std::byte* up = nullptr;  // expert_packing.h
  const std::byte* down = nullptr;
  const std::byte* shared_up = nullptr;
  const std::byte* shared_down = nullptr;
};

struct DecodeLayer {
  LayerSpec spec;
  DecodeHyper hc_attn;
  DecodeHyper hc_ffn;
  DecodeMatrix wq_a;
  DecodeMatrix wkv;
  DecodeMatrix wq_b;
  DecodeMatrix wo_a;  // kE4m3AsBf16, all groups stacked
  DecodeMatrix wo_b;
  const float* q_norm = nullptr;
  const float* kv_norm = nullptr;
  const float* sink = nullptr;  // f32 [heads]
  DecodeCompressor main;        // kC4 and kC128
  DecodeCompressor index;       // kC4, as the three below
  DecodeMatrix index_wq_b;
  DecodeMatrix index_weights;           // bf16 [index heads, hidden]
  DecodeMatrix gate;                    // bf16 [experts, hidden]
  const float* gate_bias = nullptr;     // null in hash-routed layers
  const int32_t* hash_table = nullptr;  // i32 [vocabulary, top]
  DecodeExperts experts;
  kernels::KvPoolView window;
  kernels::KvPoolView entries;        // kC4 and kC128
  kernels::IndexPoolView index_keys;  // kC4
};

/// How the draft layer begins: from the streams at a position and the token behind it.
struct DecodeDraftEntry {
  DecodeMatrix e_proj;
  DecodeMatrix h_proj;
  const float* enorm = nullptr;
  const float* hnorm = nullptr;
};

/// The main layers; or the draft layer alone, with its own head_hyper and a draft_entry.
struct DecodeModel {
  ModelConfig config;
  const uint16_t* embed = nullptr;                // bf16 [vocabulary, hidden]
  DecodeHyper head_hyper;                         // 4 rows
  DecodeMatrix head;                              // bf16 [vocabulary, hidden]
  const float* plain_frequencies = nullptr;       // f32 [32]
  const float* compressed_frequencies = nullptr;  // f32 [32]
  int64_t num_full_pages = 0;                     // of every pool of entries and index keys
  std::vector<DecodeLayer> layers;
  std::optional<DecodeDraftEntry> draft_entry;
};

/// Empty when the kernels run models of this shape; else what they do not cover.
std::string decode_unsupported(const ModelConfig& config);

}  // namespace baleen::runner
