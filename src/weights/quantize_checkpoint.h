#pragma once
// Rewrites a checkpoint in another weight format under published names, one parameter at a time:
// equal formats are copied byte for byte, FP4 to FP8 is lossless by construction, the rest goes
// through float (double where the source is f64).
//
//   ConvertReport report = convert_checkpoint(source, target, ConvertOptions{.format = bf16});

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "weights/checkpoint.h"
#include "weights/checkpoint_writer.h"

namespace baleen::weights {

struct ConvertOptions {
  CheckpointFormat format;
  int64_t max_shard_bytes = kDefaultShardBytes;
  /// FP4 to FP8 of a tile whose scales span too much: requantise instead of refusing.
  bool allow_lossy = false;
  std::optional<std::string> chat_profile;  // written into generation_config.json
  ProgressFn progress;                      // bytes of the source
};

struct ConvertReport {
  int64_t copied = 0;       // parameters kept byte for byte
  int64_t lossless = 0;     // FP4 to FP8
  int64_t reencoded = 0;    // rounded into the new format, or widened
  int64_t lossy = 0;        // of these, FP4 to FP8 that had to requantise
  int64_t total_bytes = 0;  // written
  std::size_t num_shards = 0;
};

/// Besides the weights, the other files of the folder (tokenizer, generation config, encoder) are
/// copied; quantization_config and expert_dtype follow the format, all other config keys stay.
/// Throws ConfigError, CheckpointError or SystemError.
ConvertReport convert_checkpoint(const std::filesystem::path& source,
                                 const std::filesystem::path& target,
                                 const ConvertOptions& options);

}  // namespace baleen::weights
