#pragma once
// Matches the stored tensors of a checkpoint to the parameters a model expects. Part of opening a
// checkpoint; not used elsewhere.

#include <map>
#include <string>
#include <vector>

#include "weights/checkpoint.h"
#include "weights/name_map.h"

namespace baleen::weights {

/// A stored tensor, or the slice of a fused one, under the published name it stands for.
struct BoundTensor {
  ShardSet::Entry entry;
  std::vector<int64_t> shape;
  std::size_t first_byte = 0;  // of the slice in the tensor
  bool used = false;
};

class ParameterBinding {
 public:
  /// Normalises all names. Throws CheckpointError when two stored names are one parameter.
  ParameterBinding(const ShardSet& shards, const ModelConfig& config);

  bool has_any_below(std::string_view prefix) const;
  /// Finds and checks one parameter with its scales. Returns false when its values are not stored.
  bool bind(const Parameter& parameter, StoredParameter& out);
  /// Names of tensors that no bind() took, as stored.
  std::vector<std::string> unused() const;
  /// True for tensors of MTP or drafter blocks.
  bool is_drafter(const std::string& stored_name) const;

 private:
  void add(const std::string& name, BoundTensor tensor);
  void add_fused(const NormalName& name, const ShardSet::Entry& entry);
  std::string place(const BoundTensor& tensor) const;
  std::span<const std::byte> bytes(const BoundTensor& tensor) const;

  const ShardSet& shards_;
  const ModelConfig& config_;
  std::map<std::string, BoundTensor, std::less<>> tensors_;
  std::vector<ShardSet::Entry> dropped_;
};

}  // namespace baleen::weights
