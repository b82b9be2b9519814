#pragma once
// config.json to ModelConfig and back. Reads the published form, the key names of the reference
// program, and the form the Hugging Face port saves (layer_types, compress_rates, mlp_layer_types,
// rope_parameters, partial_rotary_factor). Called once at start.
//
//   ParsedConfig parsed = read_config_json(folder / "config.json");
//   std::string text = write_config_json(parsed.config);

#include <filesystem>
#include <string>
#include <vector>

#include "base/model_config.h"

namespace baleen::weights {

struct ParsedConfig {
  ModelConfig config;
  bool port_form = false;  // layers came from layer_types
  bool has_dspark_keys =
      false;  // a checkpoint with DSpark drafters (its blocks are not MTP blocks)
  std::vector<std::string> unknown_keys;  // neither used nor known to be harmless
};

/// Throws ConfigError naming file and key, what was expected and what came.
ParsedConfig parse_config_json(const std::string& text, const std::string& where);
/// As above from a file; one warning line names the unknown keys. Throws SystemError too.
ParsedConfig read_config_json(const std::filesystem::path& path);

/// The published form where it can say everything, else (a ratio other than 4 and 128, hash-routed
/// layers that are not the first ones) the layer keys of the port. parse(write(c)) equals c.
std::string write_config_json(const ModelConfig& config);

}  // namespace baleen::weights
