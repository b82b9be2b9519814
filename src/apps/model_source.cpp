#include "apps/model_source.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "weights/config_json.h"
#include "weights/model_presets.h"
#include "weights/toy_parameters.h"

namespace baleen::apps {

ModelConfig config_from(const std::string& preset_or_path) {
  const std::vector<std::string>& presets = weights::preset_names();
  if (std::find(presets.begin(), presets.end(), preset_or_path) != presets.end()) {
    return weights::preset_config(preset_or_path);
  }
  if (preset_or_path == "toy") {
    return weights::toy_config();
  }
  std::filesystem::path path = preset_or_path;
  if (std::filesystem::is_directory(path)) {
    path /= "config.json";
  }
  if (!std::filesystem::exists(path)) {
    throw ConfigError(fmt::format("config: {} is neither a file nor one of {}, toy",
                                  preset_or_path,
                                  fmt::join(presets, ", ")));
  }
  return weights::read_config_json(path).config;
}

const std::vector<std::string>& numerics_names() {
  static const std::vector<std::string> names = {"checkpoint",
                                                 "reference",
                                                 "plain",
                                                 "checkpoint+invariant",
                                                 "reference+invariant",
                                                 "plain+invariant"};
  return names;
}

const std::vector<std::string>& format_names() {
  static const std::vector<std::string> kNames = {"fp4", "fp8", "bf16", "f32", "f64"};
  return kNames;
}

weights::CheckpointFormat format_from(const std::string& name) {
  using weights::WeightFormat;
  if (name == "fp4") {
    return {WeightFormat::kFp8, WeightFormat::kFp4};
  }
  if (name == "fp8") {
    return {WeightFormat::kFp8, WeightFormat::kFp8};
  }
  if (name == "bf16") {
    return {WeightFormat::kBf16, WeightFormat::kBf16};
  }
  if (name == "f32") {
    return {WeightFormat::kF32, WeightFormat::kF32};
  }
  if (name == "f64") {
    return {WeightFormat::kF64, WeightFormat::kF64};
  }
  throw ConfigError(fmt::format("format: {} is none of {}", name, fmt::join(format_names(), ", ")));
}

}  // namespace baleen::apps
