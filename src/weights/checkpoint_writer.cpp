#include "weights/checkpoint_writer.h"

#include <boost/json.hpp>
#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "numerics/weight_format.h"
#include "weights/mapped_file.h"

namespace baleen::weights {

namespace fs = std::filesystem;

CheckpointWriter::CheckpointWriter(const fs::path& folder,
                                   const ModelConfig& config,
                                   const CheckpointFormat& format,
                                   int64_t max_shard_bytes)
    : folder_(folder), format_(format), parameters_(parameter_inventory(config)) {
  for (const Parameter& parameter : parameters_) {
    if (format_of(parameter) == WeightFormat::kFp4 &&
        parameter.shape[1] % numerics::kFp4Group != 0) {
      throw CheckpointError(
          fmt::format("{}: FP4 needs an input width that is a multiple of {}, "
                      "got {}; choose another format",
                      parameter.name,
                      numerics::kFp4Group,
                      parameter.shape[1]));
    }
  }
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) {
    throw SystemError(
        fmt::format("{}: cannot make the folder: {}", folder_.string(), error.message()));
  }
  for (const char* name : {"config.json", "model.safetensors", "model.safetensors.index.json"}) {
    if (fs::exists(folder_ / name)) {
      throw CheckpointError(
          fmt::format("{}: there is a model already ({})", folder_.string(), name));
    }
  }
  for (const Parameter& parameter : parameters_) {
    std::vector<TensorSpec> forms = stored_forms(parameter, format_of(parameter));
    int64_t bytes = 0;
    for (const TensorSpec& form : forms) {
      bytes += form.num_bytes();
    }
    if (shards_.empty() || shards_.back().num_bytes + bytes > max_shard_bytes) {
      shards_.emplace_back();
    }
    Shard& shard = shards_.back();
    shard.num_bytes += bytes;
    ++shard.parameters_left;
    std::move(forms.begin(), forms.end(), std::back_inserter(shard.tensors));
    shard_of_.emplace(parameter.name, shards_.size() - 1);
    total_bytes_ += bytes;
  }
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    shards_[i].file_name =
        shards_.size() == 1
            ? "model.safetensors"
            : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards_.size());
  }
}

void CheckpointWriter::put(const Parameter& parameter, const EncodedParameter& encoded) {
  const auto place = shard_of_.find(parameter.name);
  BALEEN_CHECK(place != shard_of_.end(), "{} is unknown or came twice", parameter.name);
  Shard& shard = shards_[place->second];
  shard_of_.erase(place);
  if (shard.writer == nullptr) {
    shard.writer =
        std::make_unique<SafetensorsWriter>(folder_ / shard.file_name,
                                            shard.tensors,
                                            std::map<std::string, std::string>{{"format", "pt"}});
  }
  shard.writer->append(parameter.name, encoded.values);
  if (!encoded.scales.empty()) {
    shard.writer->append(scale_name(parameter.name),
                         std::as_bytes(std::span<const uint8_t>(encoded.scales)));
  }
  if (--shard.parameters_left == 0) {
    shard.writer->finish();
    shard.writer.reset();
  }
}

void CheckpointWriter::finish(const std::string& config_json) {
  BALEEN_CHECK(shard_of_.empty(), "{} parameters have not come", shard_of_.size());
  if (shards_.size() > 1) {
    boost::json::object map;
    for (const Shard& shard : shards_) {
      for (const TensorSpec& tensor : shard.tensors) {
        map[tensor.name] = shard.file_name;
      }
    }
    const boost::json::object index = {{"metadata", {{"total_size", total_bytes_}}},
                                       {"weight_map", std::move(map)}};
    write_text_file(folder_ / "model.safetensors.index.json", boost::json::serialize(index) + "\n");
  }
  write_text_file(folder_ / "config.json", config_json);
}

}  // namespace baleen::weights
