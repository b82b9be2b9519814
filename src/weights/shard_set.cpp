#include "weights/shard_set.h"

#include <map>
#include <string>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "base/error.h"
#include "weights/json_fields.h"

namespace baleen::weights {
namespace {

namespace fs = std::filesystem;

boost::json::object read_index(const fs::path& path) {
  try {
    return parse_json_object(read_text_file(path), path.string());
  } catch (const ConfigError& error) {
    throw CheckpointError(error.what());
  }
}

}  // namespace

uint64_t ShardSet::data_bytes() const {
  uint64_t bytes = 0;
  for (const SafetensorsFile& file : files_) {
    bytes += file.data_bytes();
  }
  return bytes;
}

void ShardSet::add_all_entries() {
  for (std::size_t file = 0; file < files_.size(); ++file) {
    for (const StoredTensor& tensor : files_[file].tensors()) {
      entries_.push_back({file, &tensor});
    }
  }
}

ShardSet ShardSet::open(const fs::path& folder) {
  ShardSet shards;
  const fs::path index_path = folder / "model.safetensors.index.json";
  const fs::path single_path = folder / "model.safetensors";
  if (!fs::exists(index_path)) {
    if (!fs::exists(single_path)) {
      throw CheckpointError(fmt::format("{}: neither {} nor {} is there",
                                        folder.string(),
                                        index_path.filename().string(),
                                        single_path.filename().string()));
    }
    shards.files_.push_back(SafetensorsFile::open(single_path));
    shards.add_all_entries();
    return shards;
  }
  const std::string where = index_path.string();
  const boost::json::object index = read_index(index_path);
  const boost::json::value* map = index.if_contains("weight_map");
  if (map == nullptr || !map->is_object()) {
    throw CheckpointError(fmt::format("{}: weight_map is missing", where));
  }
  std::map<std::string, std::vector<std::string>> tensors_of_file;
  for (const auto& member : map->get_object()) {
    const std::string tensor(member.key());
    if (!member.value().is_string()) {
      throw CheckpointError(fmt::format("{}: tensor {}: no file name", where, tensor));
    }
    const std::string file(member.value().get_string());
    if (file.empty() || fs::path(file).filename() != file || file == "..") {
      throw CheckpointError(
          fmt::format("{}: tensor {}: \"{}\" is not a file name", where, tensor, file));
    }
    tensors_of_file[file].push_back(tensor);
  }
  uint64_t listed = 0;
  for (const auto& [name, tensors] : tensors_of_file) {
    const fs::path path = folder / name;
    if (!fs::exists(path)) {
      throw CheckpointError(
          fmt::format("{}: shard file {} is not there; it holds {} tensors, {} "
                      "first",
                      where,
                      name,
                      tensors.size(),
                      tensors.front()));
    }
    shards.files_.push_back(SafetensorsFile::open(path));
    const SafetensorsFile& file = shards.files_.back();
    for (const std::string& tensor : tensors) {
      if (file.find(tensor) == nullptr) {
        throw CheckpointError(fmt::format("{}: tensor {} is not there, though {} says so",
                                          path.string(),
                                          tensor,
                                          index_path.filename().string()));
      }
    }
    listed += tensors.size();
    for (const StoredTensor& tensor : file.tensors()) {
      if (!map->get_object().contains(tensor.name)) {
        throw CheckpointError(fmt::format("{}: tensor {} is not listed in {}",
                                          path.string(),
                                          tensor.name,
                                          index_path.filename().string()));
      }
    }
  }
  shards.add_all_entries();
  if (shards.entries_.size() != listed) {  // every tensor is listed, so one is in two files
    std::map<std::string_view, std::size_t> first_file;
    for (const Entry& entry : shards.entries_) {
      const auto [place, fresh] = first_file.emplace(entry.tensor->name, entry.file);
      if (!fresh) {
        throw CheckpointError(fmt::format("{}: tensor {} is in both {} and {}",
                                          where,
                                          entry.tensor->name,
                                          shards.files_[place->second].path().filename().string(),
                                          shards.file_name(entry)));
      }
    }
  }
  const boost::json::value* metadata = index.if_contains("metadata");
  const boost::json::value* total = metadata != nullptr && metadata->is_object()
                                        ? metadata->get_object().if_contains("total_size")
                                        : nullptr;
  if (total != nullptr && total->is_int64() &&
      static_cast<uint64_t>(total->get_int64()) != shards.data_bytes()) {
    throw CheckpointError(fmt::format("{}: total_size is {}, but the files hold {} bytes of data",
                                      where,
                                      total->get_int64(),
                                      shards.data_bytes()));
  }
  return shards;
}

}  // namespace baleen::weights
