#include "train/train_checkpoint.h"

#include <cstring>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <boost/json.hpp>
#include <fmt/format.h>
#include <xxhash.h>

#include "base/error.h"
#include "train/commit_folder.h"
#include "weights/json_fields.h"
#include "weights/mapped_file.h"
#include "weights/safetensors.h"
#include "weights/safetensors_writer.h"

namespace baleen::train {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kFormatVersion = 1;
constexpr const char* kPrefix = "iter_";
constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kOptimizerFile = "optim.safetensors";
constexpr const char* kMetaFile = "meta.json";
constexpr const char* kChecksumFile = "checksums.json";

using SavedTensors = std::vector<std::pair<std::string, at::Tensor>>;

weights::DType file_type(at::ScalarType type) {
  return type == at::kDouble  ? weights::DType::kF64
         : type == at::kFloat ? weights::DType::kF32
                              : weights::DType::kI64;
}

SavedTensors model_tensors(const Trainer& trainer) {
  SavedTensors tensors;
  model::ModelParameters values = trainer.masters().values();
  model::for_each_parameter(values, [&](const model::ParameterInfo& info, at::Tensor& value) {
    tensors.emplace_back(info.name, value);
  });
  return tensors;
}

SavedTensors optimizer_tensors(const Trainer& trainer) {
  SavedTensors tensors;
  for (const Optimizer::State& state : trainer.optimizer().states()) {
    tensors.emplace_back(state.key(), state.value);
  }
  return tensors;
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

void write_tensors(const fs::path& file, const SavedTensors& tensors) {
  std::vector<weights::TensorSpec> specs;
  for (const auto& [name, value] : tensors) {
    specs.push_back({name, file_type(value.scalar_type()), value.sizes().vec()});
  }
  weights::SafetensorsWriter writer(file, std::move(specs));
  for (const auto& [name, value] : tensors) {
    writer.append(name, bytes_of(value.detach().to(at::kCPU).contiguous()));
  }
  writer.finish();
}

void read_tensors(const fs::path& path, const SavedTensors& tensors) {
  const at::NoGradGuard no_grad;
  const auto file = weights::SafetensorsFile::open(path);
  std::set<std::string, std::less<>> expected;
  for (const auto& [name, value] : tensors) {
    expected.insert(name);
    const weights::StoredTensor* stored = file.find(name);
    if (stored == nullptr) {
      throw CheckpointError(fmt::format("{}: {} is missing", path.string(), name));
    }
    if (stored->shape != value.sizes().vec() || stored->dtype != file_type(value.scalar_type())) {
      throw CheckpointError(fmt::format("{}: {} is {} {}, expected {} {}",
                                        path.string(),
                                        name,
                                        weights::dtype_name(stored->dtype),
                                        weights::shape_text(stored->shape),
                                        weights::dtype_name(file_type(value.scalar_type())),
                                        weights::shape_text(value.sizes().vec())));
    }
    const std::span<const std::byte> bytes = file.bytes(*stored);
    if (value.device().is_cpu() && value.is_contiguous()) {
      std::memcpy(value.mutable_data_ptr(), bytes.data(), bytes.size());
    } else {
      at::Tensor host = at::empty(value.sizes(), value.options().device(at::kCPU));
      std::memcpy(host.mutable_data_ptr(), bytes.data(), bytes.size());
      value.copy_(host);
    }
  }
  for (const weights::StoredTensor& stored : file.tensors()) {
    if (!expected.contains(stored.name)) {
      throw CheckpointError(
          fmt::format("{}: {} belongs to no trained parameter of this run; freeze the same "
                      "parameters and keep the optimizer, or skip its state",
                      path.string(),
                      stored.name));
    }
  }
}

std::string checksum(const fs::path& path) {
  const auto file = weights::MappedFile::open(path);
  return fmt::format("{:016x}", XXH3_64bits(file.bytes().data(), file.bytes().size()));
}

void write_checksums(const fs::path& folder, std::vector<std::string> names) {
  boost::json::object sums;
  names.insert(names.begin(), {kModelFile, kOptimizerFile, kMetaFile});
  for (const std::string& name : names) {
    sums[name] = {{"bytes", fs::file_size(folder / name)}, {"xxh3", checksum(folder / name)}};
  }
  write_synced(folder / kChecksumFile, boost::json::serialize(sums) + "\n");
}

void verify_checksums(const fs::path& folder) {
  const fs::path path = folder / kChecksumFile;
  const boost::json::object sums =
      weights::parse_json_object(weights::read_text_file(path), path.string());
  std::set<std::string> names = {kModelFile, kOptimizerFile, kMetaFile};
  for (const auto& entry : sums) {
    names.insert(std::string(entry.key()));
  }
  for (const std::string& name : names) {
    const fs::path file = folder / name;
    weights::JsonFields fields(sums, path.string());
    const boost::json::object* entry = fields.object(name);
    if (entry == nullptr) {
      throw CheckpointError(fmt::format("{}: {} is not listed", path.string(), name));
    }
    weights::JsonFields sum(*entry, path.string());
    if (!fs::exists(file)) {
      throw CheckpointError(fmt::format("{}: the file is missing", file.string()));
    }
    const auto bytes = static_cast<int64_t>(fs::file_size(file));
    if (bytes != sum.integer("bytes")) {
      throw CheckpointError(
          fmt::format("{}: {} bytes, expected {}", file.string(), bytes, sum.integer("bytes")));
    }
    if (checksum(file) != sum.text("xxh3")) {
      throw CheckpointError(fmt::format("{}: its checksum is wrong", file.string()));
    }
  }
}

std::string meta_text(const Trainer& trainer, const RunSettings& settings) {
  boost::json::object held;
  for (const auto& [key, value] : settings) {
    held[key] = value;
  }
  boost::json::array parameters;
  std::set<std::string> trained;
  for (const TrainedTensor& tensor : trainer.masters().trained()) {
    trained.insert(tensor.info.name);
  }
  for (const auto& [name, value] : model_tensors(trainer)) {
    parameters.push_back({{"name", name},
                          {"dtype", weights::dtype_name(file_type(value.scalar_type()))},
                          {"trained", trained.contains(name)}});
  }
  const boost::json::object meta = {{"format_version", kFormatVersion},
                                    {"step", trainer.next_step()},
                                    {"optimizer_steps", trainer.optimizer().num_steps()},
                                    {"skipped_steps", trainer.skipped_steps()},
                                    {"settings", std::move(held)},
                                    {"parameters", std::move(parameters)}};
  return boost::json::serialize(meta) + "\n";
}

/// Numbers of meta.json, after its settings were held against those of the run.
struct Meta {
  int64_t step = 0;
  int64_t optimizer_steps = 0;
  int64_t skipped_steps = 0;
};

Meta read_meta(const fs::path& path, const RunSettings& settings) {
  const boost::json::object object =
      weights::parse_json_object(weights::read_text_file(path), path.string());
  weights::JsonFields fields(object, path.string());
  if (fields.integer("format_version") != kFormatVersion) {
    throw CheckpointError(fmt::format("{}: format version {}, this program reads {}",
                                      path.string(),
                                      fields.integer("format_version"),
                                      kFormatVersion));
  }
  const boost::json::object* held = fields.object("settings");
  for (const auto& [key, value] : settings) {
    const boost::json::value* saved = held == nullptr ? nullptr : held->if_contains(key);
    const std::string text =
        saved != nullptr && saved->is_string() ? std::string(saved->as_string()) : "absent";
    if (text != value) {
      throw CheckpointError(fmt::format(
          "{}: the saved run has {} {}, this one {}; continue with the same, or save elsewhere",
          path.string(),
          key,
          text,
          value));
    }
  }
  return {
      fields.integer("step"), fields.integer("optimizer_steps"), fields.integer("skipped_steps")};
}

std::string folder_name(int64_t step) {
  return fmt::format("{}{:09}", kPrefix, step);
}

}  // namespace

void save_checkpoint(const fs::path& root, const Trainer& trainer, const SaveOptions& options) {
  const std::string name = folder_name(trainer.next_step());
  CommitFolder folder(root, name);
  write_tensors(folder.path() / kModelFile, model_tensors(trainer));
  write_tensors(folder.path() / kOptimizerFile, optimizer_tensors(trainer));
  write_synced(folder.path() / kMetaFile, meta_text(trainer, options.settings));
  std::vector<std::string> extra;
  for (const auto& [file, text] : options.extra_files) {
    write_synced(folder.path() / file, text);
    extra.push_back(file);
  }
  write_checksums(folder.path(), std::move(extra));
  folder.commit();
  point_to(root, name);
  remove_old(root, kPrefix, options.keep, name);
}

bool restore_checkpoint(const fs::path& root,
                        Trainer& trainer,
                        const RunSettings& settings,
                        LoadOptimizer load_optimizer) {
  const auto name = pointed_to(root);
  if (!name) {
    return false;
  }
  const fs::path folder = root / *name;
  verify_checksums(folder);
  const Meta meta = read_meta(folder / kMetaFile, settings);
  read_tensors(folder / kModelFile, model_tensors(trainer));
  if (load_optimizer == LoadOptimizer::kRequired) {
    read_tensors(folder / kOptimizerFile, optimizer_tensors(trainer));
    trainer.optimizer().set_num_steps(meta.optimizer_steps);
  }
  trainer.restore(meta.step, meta.skipped_steps);
  return true;
}

std::string checkpoint_file(const fs::path& root, const std::string& name) {
  const auto folder = pointed_to(root);
  const fs::path file = root / folder.value_or("latest") / name;
  if (!folder || !fs::exists(file)) {
    throw CheckpointError(fmt::format("{}: the file is missing", file.string()));
  }
  return weights::read_text_file(file);
}

int64_t saved_step(const fs::path& root) {
  const auto name = pointed_to(root);
  return name ? read_meta(root / *name / kMetaFile, {}).step : -1;
}

}  // namespace baleen::train
