#include "weights/synth.h"

#include <algorithm>
#include <cmath>
#include <thread>

#include <fmt/format.h>
#include <xxhash.h>

#include "base/check.h"
#include "base/error.h"
#include "numerics/philox.h"
#include "weights/config_json.h"
#include "weights/generation_config.h"
#include "weights/mapped_file.h"
#include "weights/toy_parameters.h"

namespace baleen::weights {
namespace {

constexpr int64_t kWordsPerBlock = 4;  // of Philox

numerics::PhiloxKey key_of(const Parameter& parameter, uint64_t seed) {
  return numerics::philox_key(
      XXH3_64bits_withSeed(parameter.name.data(), parameter.name.size(), seed));
}

/// value = offset + spread * u, u uniform in [-1, 1).
struct Distribution {
  float offset = 0.0F;
  float spread = 0.0F;
};

Distribution unit_gain(int64_t inputs) {
  return {0.0F, static_cast<float>(std::sqrt(3.0 / static_cast<double>(inputs)))};
}

/// What each element of a small hyper-connection tensor is centred on.
float hyper_connection_offset(const Parameter& parameter,
                              const ModelConfig& config,
                              int64_t index) {
  const int64_t streams = config.hc_mult;
  const auto mean_gate = static_cast<float>(-std::log(static_cast<double>(streams) - 1.0 + 1e-9));
  if (parameter.name.ends_with("_scale")) {
    return 0.5F;
  }
  if (!parameter.name.ends_with("_base") || index < streams) {
    return parameter.name.ends_with("_base") ? mean_gate : 0.0F;  // sigmoid = 1 / streams
  }
  if (index < 2 * streams) {
    return 0.0F;  // post = 2 * sigmoid(0) = 1
  }
  const int64_t cell = index - 2 * streams;
  return cell / streams == cell % streams ? 2.0F : 0.0F;  // streams mostly stay apart
}

Distribution distribution_of(const Parameter& parameter) {
  const std::string& name = parameter.name;
  if (name == "embed.weight") {
    return unit_gain(1);
  }
  if (name.ends_with("norm.weight")) {
    return {1.0F, 0.1F};
  }
  if (parameter.shape.size() == 2 && !name.ends_with(".ape")) {
    return unit_gain(parameter.shape[1]);
  }
  if (name.ends_with("attn_sink")) {
    return {0.0F, 0.5F};
  }
  return {0.0F, 0.05F};  // ape, gate.bias, hc base and scale
}

void fill_range(const Parameter& parameter,
                const ModelConfig& config,
                uint64_t seed,
                int64_t begin,
                std::span<float> out) {
  const numerics::PhiloxKey key = key_of(parameter, seed);
  const Distribution distribution = distribution_of(parameter);
  const bool centred = parameter.name.find("hc_") != std::string::npos &&
                       (parameter.name.ends_with("_base") || parameter.name.ends_with("_scale"));
  BALEEN_CHECK(begin % kWordsPerBlock == 0, "begin={}", begin);
  for (std::size_t i = 0; i < out.size();) {
    const auto block = static_cast<uint64_t>(begin + static_cast<int64_t>(i)) / kWordsPerBlock;
    const numerics::PhiloxBlock random = numerics::philox4x32_10(
        {{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0}}, key);
    for (int word = 0; word < kWordsPerBlock && i < out.size(); ++word, ++i) {
      const float unit = 2.0F * numerics::uniform_float(random.words[word]) - 1.0F;
      const float offset =
          centred ? hyper_connection_offset(parameter, config, begin + static_cast<int64_t>(i))
                  : distribution.offset;
      out[i] = offset + distribution.spread * unit;
    }
  }
}

void copy_tokenizer(const std::filesystem::path& from, const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  const fs::path file = fs::is_directory(from) ? from / "tokenizer.json" : from;
  std::error_code error;
  fs::copy_file(file, folder / "tokenizer.json", error);
  if (error) {
    throw SystemError(fmt::format("{}: cannot copy: {}", file.string(), error.message()));
  }
  const fs::path config = file.parent_path() / "tokenizer_config.json";
  if (fs::exists(config)) {
    fs::copy_file(config, folder / "tokenizer_config.json");
  }
}

EncodedParameter encode_one(const Parameter& parameter,
                            WeightFormat format,
                            const ModelConfig& config,
                            const SynthOptions& options) {
  if (parameter.kind == ParameterKind::kTable) {
    std::vector<int64_t> table;
    if (options.fill == SynthFill::kToy) {
      for (int64_t i = 0; i < parameter.num_elements(); ++i) {
        table.push_back(
            toy_expert(i / parameter.shape[1], i % parameter.shape[1], config.n_routed_experts));
      }
    } else {
      table = synthetic_table(parameter, config, options.seed);
    }
    return encode_table(table);
  }
  if (options.fill == SynthFill::kToy) {
    std::vector<double> values(static_cast<std::size_t>(parameter.num_elements()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = toy_parameter(parameter.name, static_cast<int64_t>(i));
    }
    return encode_parameter(std::span<const double>(values), parameter.shape, format);
  }
  const std::vector<float> values =
      synthetic_values(parameter, config, options.seed, options.num_threads);
  return encode_parameter(std::span<const float>(values), parameter.shape, format);
}

}  // namespace

std::vector<float> synthetic_values(const Parameter& parameter,
                                    const ModelConfig& config,
                                    uint64_t seed,
                                    int num_threads) {
  constexpr int64_t kWorthAThread = 1 << 16;
  const int64_t count = parameter.num_elements();
  std::vector<float> values(static_cast<std::size_t>(count));
  const int64_t parts = std::max<int64_t>(1, std::min<int64_t>(num_threads, count / kWorthAThread));
  const int64_t per_part = (count / parts + kWordsPerBlock) / kWordsPerBlock * kWordsPerBlock;
  std::vector<std::jthread> workers;
  for (int64_t begin = 0; begin < count; begin += per_part) {
    const auto part = std::span<float>(values).subspan(
        static_cast<std::size_t>(begin),
        static_cast<std::size_t>(std::min(per_part, count - begin)));
    if (begin + per_part < count) {
      workers.emplace_back([&parameter, &config, seed, begin, part] {
        fill_range(parameter, config, seed, begin, part);
      });
    } else {
      fill_range(parameter, config, seed, begin, part);
    }
  }
  workers.clear();  // joins
  return values;
}

std::vector<int64_t> synthetic_table(const Parameter& parameter,
                                     const ModelConfig& config,
                                     uint64_t seed) {
  const numerics::PhiloxKey key = key_of(parameter, seed);
  const int64_t width = parameter.shape[1];
  std::vector<int64_t> table;
  table.reserve(static_cast<std::size_t>(parameter.num_elements()));
  for (int64_t token = 0; token < parameter.shape[0]; ++token) {
    const auto row = static_cast<std::ptrdiff_t>(table.size());
    for (uint32_t draw = 0; static_cast<int64_t>(table.size()) - row < width; ++draw) {
      const numerics::PhiloxBlock random =
          numerics::philox4x32_10({{static_cast<uint32_t>(token), draw, 0, 0}}, key);
      const int64_t expert = random.words[0] % static_cast<uint32_t>(config.n_routed_experts);
      const bool taken = std::find(table.begin() + row, table.end(), expert) != table.end();
      if (!taken || width > config.n_routed_experts) {
        table.push_back(expert);
      }
    }
  }
  return table;
}

ModelConfig with_num_layers(ModelConfig config, int64_t num_layers) {
  if (num_layers < 1 || num_layers > config.num_hidden_layers) {
    throw ConfigError(fmt::format("config: cannot keep {} of {} layers (num_hidden_layers)",
                                  num_layers,
                                  config.num_hidden_layers));
  }
  config.layers.erase(config.layers.begin() + num_layers,
                      config.layers.begin() + config.num_hidden_layers);
  config.num_hidden_layers = num_layers;
  validate(config);
  return config;
}

ModelConfig with_num_experts(ModelConfig config, int64_t num_experts) {
  config.n_routed_experts = num_experts;
  validate(config);
  return config;
}

void write_synthetic(const std::filesystem::path& folder,
                     const ModelConfig& config,
                     const SynthOptions& options) {
  ModelConfig written = config;
  validate(written);
  written.quantization_config = options.format.matrices == WeightFormat::kFp8
                                    ? std::optional(QuantizationConfig{})
                                    : std::nullopt;
  written.expert_dtype = options.format.experts == WeightFormat::kFp4   ? "fp4"
                         : options.format.experts == WeightFormat::kFp8 ? "fp8"
                                                                        : "";
  GenerationConfig generation;
  generation.eos_token_ids = {written.eos_token_id};
  generation.chat_profile = options.chat_profile;
  const std::string generation_text = write_generation_config(generation, written);
  parse_generation_config(generation_text, "generation_config.json", written);  // refuses a profile
  CheckpointWriter writer(folder, written, options.format, options.max_shard_bytes);
  if (options.tokenizer) {
    copy_tokenizer(*options.tokenizer, folder);
  }
  uint64_t done = 0;
  for (const Parameter& parameter : writer.parameters()) {
    const EncodedParameter encoded =
        encode_one(parameter, writer.format_of(parameter), written, options);
    writer.put(parameter, encoded);
    done += encoded.values.size() + encoded.scales.size();
    if (options.progress) {
      options.progress(done, static_cast<uint64_t>(writer.total_bytes()));
    }
  }
  write_text_file(folder / "generation_config.json", generation_text);
  writer.finish(write_config_json(written));
}

}  // namespace baleen::weights
