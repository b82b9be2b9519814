#pragma once
// The trainer's weights as a source for a running engine: shared storage, of which only digests are
// compared, or a stream that is rounded to the serving formats bucket by bucket, once, from the
// float32 masters. Both are read by the engine's thread while the trainer rests. docs/training/
// weight_sync.md.
//
//   auto source = std::make_shared<MasterStream>(masters, SendOptions{.contract = ..., .version =
//   3}); engine.update_weights({.source = source, .version = "3"});

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "train/masters.h"
#include "weights/weight_stream.h"

namespace baleen::train {

/// How much of the engine's memory is compared with the trainer's behind an update.
enum class WeightVerify : uint8_t {
  kOff,
  kSample,  // kSampledTensors of them, other ones for every version
  kFull,
};
inline constexpr int64_t kSampledTensors = 64;

/// off, sample or full. Throws ConfigError naming any other name.
WeightVerify weight_verify_by_name(std::string_view name);

struct SendOptions {
  std::string contract = {};  // contract_digest() of the trainer's forward
  int64_t version = 0;
  WeightVerify verify = WeightVerify::kFull;
  int64_t bucket_bytes = 512 << 20;
};

/// Throws Error naming tensor and index of the first number that is not finite. Of masters: rounded
/// to FP4 a NaN is a number like any other.
void check_finite(const model::ModelParameters& params);

/// The engine computes with the very tensors of the trainer.
class SharedWeights final : public weights::WeightSource {
 public:
  /// `params`: what the forward reads, such as masters.leaves(). Takes the digests now: the values
  /// may change afterwards. Throws Error when a number is not finite.
  SharedWeights(const model::ModelParameters& params, const SendOptions& options);

  const weights::WeightManifest& manifest() const override { return manifest_; }
  bool in_place() const override { return true; }
  std::optional<weights::WeightBucket> next() override { return std::nullopt; }
  std::string root() const override { return {}; }
  weights::TensorDigests value_digests() const override { return digests_; }

 private:
  weights::WeightManifest manifest_;
  weights::TensorDigests digests_;
};

/// Sends what an export of the masters would write.
class MasterStream final : public weights::WeightSource {
 public:
  /// `masters` outlive the stream and rest until its end. Throws Error when a number is not finite.
  MasterStream(const Masters& masters, SendOptions options);

  const weights::WeightManifest& manifest() const override { return manifest_; }
  std::optional<weights::WeightBucket> next() override;
  std::string root() const override;
  weights::TensorDigests value_digests() const override;

 private:
  const Masters& masters_;
  SendOptions options_;
  weights::WeightManifest manifest_;
  std::map<std::string, at::Tensor> values_;  // of the masters, by published name
  std::size_t next_ = 0;                      // entry of the manifest
  weights::TensorDigests sent_;
};

/// The whole model at a moment of its training.
struct PublishedWeights {
  model::ModelParameters values;  // unrounded
  model::ModelParameters leaves;  // what a forward computes with
  bool rounded = false;           // the leaves are the values in the formats that are served
};
/// Shares the tensors of masters that hold the whole model.
PublishedWeights published_weights(const Masters& masters);

/// Writes a folder in the published format with weights.json and the tokenizer's files of `source`
/// (empty: there are none) beside them: under another name first, then renamed, so that whoever
/// finds the folder finds it whole. Throws Error when it exists, when the disk refuses, or when a
/// number is not finite.
void publish_folder(const PublishedWeights& whole,
                    const std::filesystem::path& source,
                    const std::filesystem::path& folder,
                    const SendOptions& options);

}  // namespace baleen::train
