#include "weights/name_map.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace baleen::weights {
namespace {

using Segments = std::vector<std::string>;
using Words = std::map<std::string, std::string, std::less<>>;

Segments split(std::string_view name) {
  Segments segments;
  while (true) {
    const std::size_t dot = name.find('.');
    segments.emplace_back(name.substr(0, dot));
    if (dot == std::string_view::npos) {
      return segments;
    }
    name.remove_prefix(dot + 1);
  }
}

std::string join(const Segments& segments) {
  return fmt::format("{}", fmt::join(segments, "."));
}

std::optional<int64_t> as_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) {
    return std::nullopt;
  }
  return value;
}

void replace(std::string& word, const Words& words) {
  const auto found = words.find(word);
  if (found != words.end()) {
    word = found->second;
  }
}

Words inverse(const Words& words) {
  Words out;
  for (const auto& [from, to] : words) {
    out[to] = from;
  }
  return out;
}

const Words kBlock = {{"self_attn", "attn"},
                      {"mlp", "ffn"},
                      {"input_layernorm", "attn_norm"},
                      {"post_attention_layernorm", "ffn_norm"}};
const Words kAttention = {{"q_a_proj", "wq_a"},
                          {"q_a_norm", "q_norm"},
                          {"q_b_proj", "wq_b"},
                          {"kv_proj", "wkv"},
                          {"o_a_proj", "wo_a"},
                          {"o_b_proj", "wo_b"},
                          {"sinks", "attn_sink"}};
const Words kAttentionOlder = {{"q_a_layernorm", "q_norm"}, {"kv_a_layernorm", "kv_norm"}};
const Words kCompressor = {
    {"kv_proj", "wkv"}, {"gate_proj", "wgate"}, {"position_bias", "ape"}, {"kv_norm", "norm"}};
const Words kExpert = {{"gate_proj", "w1"}, {"up_proj", "w3"}, {"down_proj", "w2"}};
const Words kGlobal = {{"embed_tokens", "embed"}, {"lm_head", "head"}};

/// `a.b` -> `hc_attn_fn` and the like, where the two segments spell a hyper-connection tensor.
std::optional<std::string> hyper_connection(const Segments& segments, std::size_t at) {
  if (at + 2 != segments.size()) {
    return std::nullopt;
  }
  const std::string& owner = segments[at];
  std::string_view leaf = segments[at + 1];
  if (leaf.starts_with("hc_")) {
    leaf.remove_prefix(3);
  }
  if (leaf != "fn" && leaf != "base" && leaf != "scale") {
    return std::nullopt;
  }
  for (const char* place : {"attn", "ffn", "head"}) {
    if (owner == fmt::format("{}_hc", place) || owner == fmt::format("hc_{}", place)) {
      return fmt::format("hc_{}_{}", place, leaf);
    }
  }
  return std::nullopt;
}

void normalise_attention(Segments& segments, std::size_t at) {
  if (at >= segments.size()) {
    return;
  }
  if (segments[at] == "compressor" && at + 1 < segments.size() && segments[at + 1] == "indexer") {
    segments.erase(segments.begin() + static_cast<std::ptrdiff_t>(at));  // the port nests it
    if (at + 1 < segments.size() && segments[at + 1] == "scorer") {
      segments.erase(segments.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
  }
  if (segments[at] == "compressor" && at + 1 < segments.size()) {
    replace(segments[at + 1], kCompressor);
  } else if (segments[at] == "indexer" && at + 1 < segments.size()) {
    if (segments[at + 1] == "compressor") {
      if (at + 2 < segments.size()) {
        replace(segments[at + 2], kCompressor);
      }
    } else if (kCompressor.contains(segments[at + 1])) {
      replace(segments[at + 1], kCompressor);
      segments.insert(segments.begin() + static_cast<std::ptrdiff_t>(at) + 1, "compressor");
    } else {
      replace(segments[at + 1], kAttention);
    }
  } else {
    replace(segments[at], kAttention);
    replace(segments[at], kAttentionOlder);
  }
}

/// Returns the kind of fused experts, if the name is one; segments then end after `experts`.
FusedExperts normalise_moe(Segments& segments, std::size_t at, bool& is_scale) {
  if (at >= segments.size()) {
    return FusedExperts::kNone;
  }
  if (segments[at] == "topk" && at + 1 < segments.size() && segments[at + 1] == "tid2eid") {
    segments[at] = "gate";
  }
  if (segments[at] == "gate" && at + 1 < segments.size()) {
    if (segments[at + 1] == "e_score_correction_bias") {
      segments[at + 1] = "bias";
    }
  } else if (segments[at] == "shared_experts" && at + 1 < segments.size()) {
    replace(segments[at + 1], kExpert);
  } else if (segments[at] == "experts" && at + 1 < segments.size()) {
    if (as_number(segments[at + 1])) {
      if (at + 2 < segments.size()) {
        replace(segments[at + 2], kExpert);
      }
      return FusedExperts::kNone;
    }
    std::string leaf = segments[at + 1];
    is_scale = leaf.ends_with("_scale_inv") || segments.back() == "scale";
    if (leaf.ends_with("_scale_inv")) {
      leaf.resize(leaf.size() - std::string_view("_scale_inv").size());
    }
    if (leaf == "gate_up_proj" || leaf == "down_proj") {
      segments.resize(at + 1);
      return leaf == "down_proj" ? FusedExperts::kDown : FusedExperts::kGateUp;
    }
  }
  return FusedExperts::kNone;
}

/// What follows `layers.N.` or `mtp.N.`, from segment 2.
FusedExperts normalise_block(Segments& segments, bool& is_scale) {
  constexpr std::size_t kAt = 2;
  if (segments.size() <= kAt) {
    return FusedExperts::kNone;
  }
  if (const std::optional<std::string> name = hyper_connection(segments, kAt)) {
    segments.resize(kAt);
    segments.push_back(*name);
    return FusedExperts::kNone;
  }
  replace(segments[kAt], kBlock);
  if (segments[kAt] == "attn") {
    normalise_attention(segments, kAt + 1);
  } else if (segments[kAt] == "ffn") {
    return normalise_moe(segments, kAt + 1, is_scale);
  }
  return FusedExperts::kNone;
}

/// Copies of embedding and head below an MTP block in older layouts.
bool is_shared_copy(const Segments& segments) {
  if (segments.size() < 4 || segments[0] != "mtp") {
    return false;
  }
  const std::string& word = segments[2];
  return word == "emb" || word == "embed" || word == "embed_tokens" || word == "head" ||
         word == "lm_head" || (word == "shared_head" && segments[3] == "head");
}

}  // namespace

NormalName normalise_name(std::string_view stored, int64_t num_hidden_layers) {
  NormalName result;
  Segments segments = split(stored);
  if (segments.size() > 1 && segments[0] == "model") {
    segments.erase(segments.begin());
  }
  if (segments.back() == "weight_scale_inv") {
    segments.back() = "scale";
  }
  if (segments[0] == "layers" && segments.size() > 1) {
    const std::optional<int64_t> layer = as_number(segments[1]);
    if (layer && *layer >= num_hidden_layers) {
      segments[0] = "mtp";
      segments[1] = std::to_string(*layer - num_hidden_layers);
    }
  }
  if (segments[0] == "mtp" && is_shared_copy(segments)) {
    result.dropped = true;
  } else if (segments[0] == "layers" || segments[0] == "mtp") {
    if (segments.size() == 5 && segments[2] == "shared_head" && segments[3] == "norm") {
      segments.erase(segments.begin() + 2);
    }
    result.fused = normalise_block(segments, result.fused_scale);
  } else if (const std::optional<std::string> name = hyper_connection(segments, 0)) {
    segments = {*name};
  } else {
    replace(segments[0], kGlobal);
  }
  result.name = join(segments);
  if (result.fused != FusedExperts::kNone) {
    result.name += '.';
  }
  return result;
}

std::optional<std::string> port_name(std::string_view published) {
  static const Words kToAttention = inverse(kAttention);
  static const Words kToCompressor = inverse(kCompressor);
  static const Words kToExpert = inverse(kExpert);
  static const Words kToBlock = inverse(kBlock);
  Segments segments = split(published);
  if (segments[0] == "mtp") {
    return std::nullopt;
  }
  if (segments.back() == "scale") {
    segments.back() = "weight_scale_inv";
  }
  if (segments[0] != "layers") {
    if (segments[0].starts_with("hc_head_")) {
      return "model.hc_head.hc_" + segments[0].substr(std::string_view("hc_head_").size());
    }
    replace(segments[0], inverse(kGlobal));
    return (segments[0] == "lm_head" ? "" : "model.") + join(segments);
  }
  if (segments.size() == 3 && segments[2].starts_with("hc_")) {
    const std::string& word = segments[2];  // hc_attn_fn -> attn_hc.fn
    const std::size_t cut = word.find('_', 3);
    return fmt::format(
        "model.layers.{}.{}_hc.{}", segments[1], word.substr(3, cut - 3), word.substr(cut + 1));
  }
  if (segments[2] == "attn") {
    if (segments[3] == "compressor") {
      replace(segments[4], kToCompressor);
    } else if (segments[3] == "indexer") {
      if (segments[4] == "compressor") {
        segments.erase(segments.begin() + 4);
        replace(segments[4], kToCompressor);
      } else if (segments[4] == "weights_proj") {
        segments.insert(segments.begin() + 4, "scorer");
      } else {
        replace(segments[4], kToAttention);
      }
      segments.insert(segments.begin() + 3, "compressor");
    } else {
      replace(segments[3], kToAttention);
    }
  } else if (segments[2] == "ffn") {
    if (segments[3] == "experts") {
      return std::nullopt;
    }
    if (segments[3] == "shared_experts") {
      replace(segments[4], kToExpert);
    } else if (segments.back() == "bias") {
      segments.back() = "e_score_correction_bias";
    }
  }
  replace(segments[2], kToBlock);
  return "model." + join(segments);
}

std::string exchange_name(std::string_view published, int64_t num_hidden_layers) {
  static const Words kToExpert = inverse(kExpert);
  static const Words kToBlock = inverse(kBlock);
  Segments segments = split(published);
  if (segments.back() == "scale") {
    segments.back() = "weight_scale_inv";
  }
  if (segments[0] != "layers" && segments[0] != "mtp") {
    replace(segments[0], inverse(kGlobal));
    return (segments[0] == "lm_head" ? "" : "model.") + join(segments);
  }
  if (segments[0] == "mtp") {
    segments[0] = "layers";
    segments[1] = std::to_string(num_hidden_layers + as_number(segments[1]).value_or(0));
    if (segments[2] == "norm") {
      segments.insert(segments.begin() + 2, "shared_head");
    }
  }
  if (segments[2] == "ffn") {
    if (segments[3] == "gate") {
      if (segments[4] == "bias") {
        segments[4] = "e_score_correction_bias";
      } else if (segments[4] == "tid2eid") {
        segments[3] = "topk";
      }
    } else {
      replace(segments[segments.size() - 2], kToExpert);
    }
  }
  replace(segments[2], kToBlock);
  return "model." + join(segments);
}

}  // namespace baleen::weights
