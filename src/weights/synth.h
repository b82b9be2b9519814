#pragma once
// Checkpoints with made-up weights. The random fill keeps activations of unit size through every
// layer and depends on tensor name, element index and seed alone, so the values are the same in
// every format, shard layout and number of threads.
//
//   write_synthetic(folder, flash_4layer_config(), SynthOptions{});

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/model_config.h"
#include "weights/checkpoint.h"
#include "weights/checkpoint_writer.h"

namespace baleen::weights {

enum class SynthFill : uint8_t {
  kRandom,
  kToy,  // toy_parameters.h
};

struct SynthOptions {
  CheckpointFormat format;
  SynthFill fill = SynthFill::kRandom;
  uint64_t seed = 0;
  int64_t max_shard_bytes = kDefaultShardBytes;
  std::string chat_profile = "v4";
  std::optional<std::filesystem::path> tokenizer;  // a tokenizer.json to copy, or its folder
  int num_threads = 1;
  ProgressFn progress;
};

/// Values of one parameter (not of a routing table), row-major. Values do not depend on
/// num_threads.
std::vector<float> synthetic_values(const Parameter& parameter,
                                    const ModelConfig& config,
                                    uint64_t seed,
                                    int num_threads = 1);
/// Distinct experts per row, as long as there are enough.
std::vector<int64_t> synthetic_table(const Parameter& parameter,
                                     const ModelConfig& config,
                                     uint64_t seed);

/// Throws ConfigError, CheckpointError or SystemError. The folder must hold no model yet.
void write_synthetic(const std::filesystem::path& folder,
                     const ModelConfig& config,
                     const SynthOptions& options);

/// The config with only its first layers (MTP blocks stay), and with fewer experts. Throws
/// ConfigError when there are not as many.
ModelConfig with_num_layers(ModelConfig config, int64_t num_layers);
ModelConfig with_num_experts(ModelConfig config, int64_t num_experts);

}  // namespace baleen::weights
