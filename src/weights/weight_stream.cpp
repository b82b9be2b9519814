#include "weights/weight_stream.h"

#include <array>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "weights/config_json.h"

namespace baleen::weights {
namespace {

/// What stands for a tensor's group: its name, with the matrices that are run as one under one.
std::string group_name(const std::string& name) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kJoined = {{
      {".attn.wkv.weight", ".attn.wq_a.weight"},
      {".compressor.wgate.weight", ".compressor.wkv.weight"},
      {".w3.weight", ".w1.weight"},
      {".h_proj.weight", ".e_proj.weight"},
  }};
  for (const auto& [second, first] : kJoined) {
    if (name.ends_with(second)) {
      return name.substr(0, name.size() - second.size()) + std::string(first);
    }
  }
  return name;
}

int64_t stored_bytes(const Parameter& parameter, WeightFormat format) {
  int64_t bytes = 0;
  for (const TensorSpec& tensor : stored_forms(parameter, format)) {
    bytes += tensor.num_bytes();
  }
  return bytes;
}

}  // namespace

std::string WeightManifest::digest() const {
  std::string text = fmt::format("contract {}\nconfig {}\n", contract, config);
  for (const ManifestEntry& entry : entries) {
    text += fmt::format(
        "{} {} {}", entry.parameter.name, weight_format_name(entry.format), entry.group);
    for (const int64_t size : entry.parameter.shape) {
      text += fmt::format(" {}", size);
    }
    text += '\n';
  }
  return text_digest(text);
}

std::string model_digest(const ModelConfig& config) {
  ModelConfig main = config;
  main.num_nextn_predict_layers = 0;
  main.layers.resize(static_cast<std::size_t>(config.num_hidden_layers));
  main.quantization_config.reset();
  main.expert_dtype.clear();
  return text_digest(write_config_json(main));
}

WeightManifest weight_manifest(const ModelConfig& config,
                               const CheckpointFormat& format,
                               const std::string& contract,
                               int64_t version) {
  WeightManifest manifest;
  manifest.version = version;
  manifest.contract = contract;
  manifest.config = model_digest(config);
  // Members of a group stand together, at the place of the first.
  std::unordered_map<std::string, int32_t> groups;
  std::vector<std::vector<Parameter>> members;
  for (Parameter& parameter : parameter_inventory(config)) {
    const auto [found, fresh] =
        groups.try_emplace(group_name(parameter.name), static_cast<int32_t>(members.size()));
    if (fresh) {
      members.emplace_back();
    }
    members[static_cast<std::size_t>(found->second)].push_back(std::move(parameter));
  }
  for (std::size_t group = 0; group < members.size(); ++group) {
    for (Parameter& parameter : members[group]) {
      const WeightFormat stored = format.format_of(parameter.kind);
      const int64_t bytes = stored_bytes(parameter, stored);
      manifest.entries.push_back(
          {std::move(parameter), stored, bytes, static_cast<int32_t>(group)});
    }
  }
  return manifest;
}

StreamCheck::StreamCheck(const WeightManifest& manifest)
    : manifest_(manifest), came_(manifest.entries.size(), false) {
  for (std::size_t i = 0; i < manifest.entries.size(); ++i) {
    const std::string& name = manifest.entries[i].parameter.name;
    if (!place_.emplace(name, i).second) {
      throw CheckpointError(fmt::format("{}: announced twice", name));
    }
    groups_[manifest.entries[i].group].push_back(i);
    digests_.emplace_back(name, 0);
  }
}

const ManifestEntry& StreamCheck::entry(std::string_view name) const {
  const auto found = place_.find(name);
  if (found == place_.end()) {
    throw CheckpointError(fmt::format("{}: not announced in the manifest", name));
  }
  return manifest_.entries[found->second];
}

void StreamCheck::accept(const WeightBucket& bucket) {
  std::vector<int32_t> groups;
  for (const StreamedTensor& tensor : bucket) {
    const ManifestEntry& announced = entry(tensor.name);
    const std::size_t place = place_.at(tensor.name);
    if (came_[place]) {
      throw CheckpointError(fmt::format("{}: came twice", tensor.name));
    }
    const auto bytes =
        static_cast<int64_t>(tensor.encoded.values.size() + tensor.encoded.scales.size());
    if (bytes != announced.num_bytes) {
      throw CheckpointError(fmt::format("{}: {} bytes came, {} as {} expected",
                                        tensor.name,
                                        bytes,
                                        announced.num_bytes,
                                        weight_format_name(announced.format)));
    }
    const uint64_t digest = tensor_digest(tensor.name,
                                          {std::as_bytes(std::span(tensor.encoded.values)),
                                           std::as_bytes(std::span(tensor.encoded.scales))});
    if (digest != tensor.digest) {
      throw CheckpointError(fmt::format("{}: digest {:016x} of what came, {:016x} of what was sent",
                                        tensor.name,
                                        digest,
                                        tensor.digest));
    }
    came_[place] = true;
    digests_[place].second = digest;
    groups.push_back(announced.group);
  }
  for (const int32_t group : groups) {
    for (const std::size_t i : groups_.at(group)) {
      if (!came_[i]) {
        throw CheckpointError(
            fmt::format("{}: did not come in the bucket of the tensors that it is run with",
                        manifest_.entries[i].parameter.name));
      }
    }
  }
}

void StreamCheck::finish(const std::string& root) const {
  for (std::size_t i = 0; i < came_.size(); ++i) {
    if (!came_[i]) {
      throw CheckpointError(fmt::format("{}: did not come", manifest_.entries[i].parameter.name));
    }
  }
  const std::string own = digest_root(digests_);
  if (own != root) {
    throw CheckpointError(
        fmt::format("root digest {} of what came, {} of what was sent", own, root));
  }
}

std::size_t bucket_end(const WeightManifest& manifest, std::size_t begin, int64_t bucket_bytes) {
  BALEEN_CHECK(begin < manifest.entries.size(), "{}", begin);
  const auto group_end = [&](std::size_t first) {
    std::size_t end = first;
    while (end < manifest.entries.size() &&
           manifest.entries[end].group == manifest.entries[first].group) {
      ++end;
    }
    return end;
  };
  std::size_t end = begin;
  int64_t bytes = 0;
  while (end < manifest.entries.size()) {
    const std::size_t next = group_end(end);
    for (std::size_t i = end; i < next; ++i) {
      bytes += manifest.entries[i].num_bytes;
    }
    if (end > begin && bytes > bucket_bytes) {
      break;
    }
    end = next;
  }
  return end;
}

}  // namespace baleen::weights
