#pragma once
// Published tensor names, the names of the Hugging Face port and the exchange names of SGLang and
// RL trainers, translated by name segments (a word used twice is told apart by its parent segment).
// Pure functions.
//
//   NormalName n = normalise_name("model.layers.0.self_attn.q_a_proj.weight", 43);
//   n.name == "layers.0.attn.wq_a.weight"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace baleen::weights {

/// Experts of a layer stored as one tensor.
enum class FusedExperts : uint8_t {
  kNone,
  kGateUp,  // [E, 2I, H], rows of w1 first, then of w3
  kDown,    // [E, H, I]
};

struct NormalName {
  std::string name;  // published name; for fused experts the prefix "layers.N.ffn.experts."
  FusedExperts fused = FusedExperts::kNone;
  bool fused_scale = false;  // the scales of fused experts
  bool dropped = false;      // a copy of embedding or head below an MTP block: not a parameter
};

/// Any of the three schemes to the published one. Names of no scheme come back unchanged.
/// num_hidden_layers tells exchange names of MTP blocks (`model.layers.{L}.`) from main layers.
NormalName normalise_name(std::string_view stored, int64_t num_hidden_layers);

/// Name in the port; none for what the port does not hold by itself (routed experts are fused
/// there, MTP blocks are not loaded).
std::optional<std::string> port_name(std::string_view published);
/// Name in the exchange scheme.
std::string exchange_name(std::string_view published, int64_t num_hidden_layers);

}  // namespace baleen::weights
