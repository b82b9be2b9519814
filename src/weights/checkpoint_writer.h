#pragma once
// Writes the weights of a checkpoint folder, parameter by parameter, as one model.safetensors or as
// shards with their index. Parameters may come in any order; a shard is closed when its last one
// has come. config.json is written by finish(), so a half-written folder cannot be loaded. One
// thread.
//
//   CheckpointWriter writer(folder, config, CheckpointFormat{});
//   for (const Parameter& p : writer.parameters()) writer.put(p, encode_parameter(...));
//   writer.finish(write_config_json(config));

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/model_config.h"
#include "weights/parameter_codec.h"
#include "weights/safetensors_writer.h"
#include "weights/tensor_inventory.h"

namespace baleen::weights {

inline constexpr int64_t kDefaultShardBytes = 5'000'000'000;

class CheckpointWriter {
 public:
  /// Makes the folder. Throws CheckpointError if there is a model in it, or when the model cannot
  /// be stored in this format (FP4 with an expert input width that is no multiple of 32).
  CheckpointWriter(const std::filesystem::path& folder,
                   const ModelConfig& config,
                   const CheckpointFormat& format,
                   int64_t max_shard_bytes = kDefaultShardBytes);

  const std::vector<Parameter>& parameters() const { return parameters_; }
  WeightFormat format_of(const Parameter& parameter) const {
    return format_.format_of(parameter.kind);
  }
  int64_t total_bytes() const { return total_bytes_; }
  std::size_t num_shards() const { return shards_.size(); }
  void put(const Parameter& parameter, const EncodedParameter& encoded);
  /// Every parameter must have come. Writes the index, if there are shards, and config.json.
  void finish(const std::string& config_json);

 private:
  struct Shard {
    std::string file_name;
    std::vector<TensorSpec> tensors;
    int64_t num_bytes = 0;
    std::size_t parameters_left = 0;
    std::unique_ptr<SafetensorsWriter> writer;  // while the shard is being written
  };
  std::filesystem::path folder_;
  CheckpointFormat format_;
  std::vector<Parameter> parameters_;
  std::vector<Shard> shards_;
  std::unordered_map<std::string, std::size_t> shard_of_;  // parameter -> shard, until it came
  int64_t total_bytes_ = 0;
};

}  // namespace baleen::weights
