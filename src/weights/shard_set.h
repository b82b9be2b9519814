#pragma once
// The safetensors files of a checkpoint folder: the shards of model.safetensors.index.json, or the
// single model.safetensors. Opened and cross-checked before any data is read. Read-only afterwards,
// from any thread.
//
//   ShardSet shards = ShardSet::open(folder);
//   for (const ShardSet::Entry& e : shards.entries()) { e.tensor->name, shards.bytes(e) }

#include <filesystem>
#include <span>
#include <vector>

#include "weights/safetensors.h"

namespace baleen::weights {

class ShardSet {
 public:
  struct Entry {
    std::size_t file = 0;
    const StoredTensor* tensor = nullptr;
  };

  /// Throws CheckpointError naming file and tensor: no weights at all, a shard or one of its
  /// tensors absent, tensors the index does not list, a wrong total_size.
  static ShardSet open(const std::filesystem::path& folder);

  const std::vector<Entry>& entries() const { return entries_; }
  std::span<const std::byte> bytes(const Entry& entry) const {
    return files_[entry.file].bytes(*entry.tensor);
  }
  std::string file_name(const Entry& entry) const {
    return files_[entry.file].path().filename().string();
  }
  std::size_t num_files() const { return files_.size(); }
  uint64_t data_bytes() const;

 private:
  ShardSet() = default;
  void add_all_entries();
  std::vector<SafetensorsFile> files_;
  std::vector<Entry> entries_;
};

}  // namespace baleen::weights
