#pragma once
// A checkpoint folder, checked as a whole before anything is read: config, index or single file,
// names of any scheme, every expected tensor there once with the right shape and type, scales
// beside their matrices, nothing unexpected. Data stays in the memory map until a read copies it.
// Owned by whoever loads the model; reads are safe from any thread.
//
//   Checkpoint checkpoint = Checkpoint::open("models/abacus");
//   for (const Parameter& p : checkpoint.parameters()) {
//     checkpoint.read_float(p.name, std::span<float>(destination));
//   }

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/model_config.h"
#include "weights/generation_config.h"
#include "weights/shard_set.h"
#include "weights/tensor_inventory.h"

namespace baleen::weights {

/// Bytes read so far and in all. Called by the thread that read, maybe by several at once.
using ProgressFn = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

struct OpenOptions {
  bool load_mtp = true;  // false: MTP blocks are left out, their tensors are only counted
  ProgressFn progress;   // may be empty
};

/// Values of one parameter where the file holds them. Fused experts are views into their tensor.
struct StoredParameter {
  WeightFormat format = WeightFormat::kBf16;
  std::vector<int64_t> shape;         // logical, as Parameter::shape
  std::span<const std::byte> values;  // kFp4: two codes a byte; may be unaligned
  std::span<const uint8_t> scales;    // UE8M0, for kFp8 and kFp4
  std::string source;                 // "FILE: TENSOR", for messages
};

class Checkpoint {
 public:
  /// Throws ConfigError, CheckpointError or SystemError, each naming file and key or tensor.
  static Checkpoint open(const std::filesystem::path& folder, const OpenOptions& options = {});

  const std::filesystem::path& folder() const { return folder_; }
  const ModelConfig& config() const { return config_; }
  const GenerationConfig& generation() const { return generation_; }
  bool has_dspark_keys() const { return has_dspark_keys_; }
  /// Every parameter of the model, each exactly once, under its published name.
  const std::vector<Parameter>& parameters() const { return parameters_; }
  bool contains(std::string_view name) const;
  /// The name must be one of parameters() (checked), here and below.
  const StoredParameter& stored(std::string_view name) const;
  WeightFormat format(std::string_view name) const { return stored(name).format; }
  /// Format of the routed experts of the first layer, as the tensors say.
  WeightFormat expert_format() const;
  uint64_t total_bytes() const { return total_bytes_; }  // values and scales of all parameters
  const std::vector<std::string>& unused_tensors() const { return unused_; }

  /// Dequantised values, row-major. Exact for every format but f64 read as float. The span must
  /// have the size of the parameter. Throws CheckpointError naming the tensor when a scale is NaN.
  void read_float(std::string_view name, std::span<float> values) const;
  void read_double(std::string_view name, std::span<double> values) const;
  /// The routing table.
  void read_int64(std::string_view name, std::span<int64_t> values) const;
  /// Counts bytes that a caller took from stored() itself.
  void report_read(std::string_view name) const;

 private:
  explicit Checkpoint(ShardSet shards) : shards_(std::move(shards)) {}
  struct NameHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view name) const {
      return std::hash<std::string_view>{}(name);
    }
  };
  void check_table(const Parameter& parameter) const;
  template <class T>
  void read(std::string_view name, std::span<T> values) const;

  std::filesystem::path folder_;
  ShardSet shards_;
  ModelConfig config_;
  GenerationConfig generation_;
  bool has_dspark_keys_ = false;
  std::vector<Parameter> parameters_;
  std::unordered_map<std::string, StoredParameter, NameHash, std::equal_to<>> stored_;
  std::vector<std::string> unused_;
  uint64_t total_bytes_ = 0;
  ProgressFn progress_;
  std::unique_ptr<std::atomic<uint64_t>> done_bytes_ = std::make_unique<std::atomic<uint64_t>>(0);
};

}  // namespace baleen::weights
