#pragma once
// Weights on their way into a running engine: a manifest that says what comes, buckets of encoded
// tensors, and a root digest at the end. Whoever sends implements WeightSource; whoever receives
// checks with a StreamCheck that every tensor came once, whole, unchanged and with those that it
// belongs to. Nothing here touches a model. docs/training/weight_sync.md.
//
//   WeightManifest manifest = weight_manifest(config, format, contract, version);
//   StreamCheck check(manifest, expected_contract, expected_formats);
//   while (auto bucket = source.next()) { check.accept(*bucket); ... }
//   check.finish(source.root());

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/model_config.h"
#include "weights/digest.h"
#include "weights/parameter_codec.h"
#include "weights/tensor_inventory.h"

namespace baleen::weights {

struct ManifestEntry {
  Parameter parameter;  // published name, logical shape
  WeightFormat format = WeightFormat::kBf16;
  int64_t num_bytes = 0;  // values and scales
  // Entries of one group never come in different buckets: matrices that are run as one (wq_a with
  // wkv, a compressor's wkv with its wgate, an expert's gate with its up projection).
  int32_t group = 0;
};

struct WeightManifest {
  int64_t version = 0;
  std::string contract;                // digest of how the sender computes with the weights
  std::string config;                  // model_digest()
  std::vector<ManifestEntry> entries;  // in the order of the inventory

  /// Of names, shapes, formats and groups, contract and config; not of version and content.
  std::string digest() const;
};

/// Of all options of the main model: config.json as written, without MTP blocks and without what
/// the file says of its own formats.
std::string model_digest(const ModelConfig& config);

/// Every parameter of the model, tables and biases included, in `format`.
WeightManifest weight_manifest(const ModelConfig& config,
                               const CheckpointFormat& format,
                               const std::string& contract,
                               int64_t version);

struct StreamedTensor {
  std::string name;
  EncodedParameter encoded;
  uint64_t digest = 0;  // tensor_digest(name, {values, scales})
};

using WeightBucket = std::vector<StreamedTensor>;

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual const WeightManifest& manifest() const = 0;
  /// True: sender and receiver share the values, no bucket comes.
  virtual bool in_place() const { return false; }
  /// The next bucket; none: that was all. Throws Error when the sender cannot go on.
  virtual std::optional<WeightBucket> next() = 0;
  /// digest_root() over all tensors in the manifest's order; valid after the last bucket.
  virtual std::string root() const = 0;
  /// Digests to be found after writing; empty: not told.
  virtual TensorDigests value_digests() const { return {}; }
};

/// Follows a stream. Throws CheckpointError naming the tensor; what was accepted before is written
/// by then.
class StreamCheck {
 public:
  explicit StreamCheck(const WeightManifest& manifest);

  /// Names, sizes, digests, groups.
  void accept(const WeightBucket& bucket);
  const ManifestEntry& entry(std::string_view name) const;
  /// Everything must have come.
  void finish(const std::string& root) const;

 private:
  const WeightManifest& manifest_;
  std::unordered_map<std::string_view, std::size_t> place_;
  std::unordered_map<int32_t, std::vector<std::size_t>> groups_;
  std::vector<bool> came_;
  TensorDigests digests_;  // in the manifest's order
};

/// Entries [begin, end) of a manifest that make the next bucket of at most `bucket_bytes`, a whole
/// number of groups and at least one.
std::size_t bucket_end(const WeightManifest& manifest, std::size_t begin, int64_t bucket_bytes);

}  // namespace baleen::weights
