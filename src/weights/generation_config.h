#pragma once
// generation_config.json: end tokens, sampling defaults and the chat profile a checkpoint declares.
// The file may be absent; then the defaults stand and the end token comes from config.json.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/model_config.h"

namespace baleen::weights {

struct GenerationConfig {
  std::vector<int64_t> eos_token_ids;  // at least one, the main one first
  bool do_sample = true;
  double temperature = 1.0;
  double top_p = 1.0;
  int64_t top_k = -1;  // -1: all
  std::optional<int64_t> max_new_tokens;
  std::optional<std::string> chat_profile;  // "v4", "v4-0731" or "v4.1"
};

/// Throws ConfigError naming file and key.
GenerationConfig parse_generation_config(const std::string& text,
                                         const std::string& where,
                                         const ModelConfig& config);
/// Reads folder/generation_config.json if it is there.
GenerationConfig read_generation_config(const std::filesystem::path& folder,
                                        const ModelConfig& config);
std::string write_generation_config(const GenerationConfig& generation, const ModelConfig& config);

}  // namespace baleen::weights
