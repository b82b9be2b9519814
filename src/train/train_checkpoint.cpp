#include "train/train_checkpoint.h"

#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <boost/json.hpp>
#include <fmt/format.h>
#include <xxhash.h>

#include "base/error.h"
#include "mesh/rank_tensors.h"
#include "mesh/whole_parameters.h"
#include "train/checkpoint_slices.h"
#include "train/commit_folder.h"
#include "weights/json_fields.h"
#include "weights/mapped_file.h"
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

bool is_muon(const Trainer& trainer, const model::ParameterInfo& info) {
  return trainer.config().optimizer.kind == OptimizerKind::kMuon && is_hidden_matrix(info);
}

weights::DType value_type(const Trainer& trainer, const model::ParameterInfo& info) {
  return info.role == model::ParameterRole::kHashTable
             ? weights::DType::kI64
             : stored_type(trainer.masters().flat_values().scalar_type());
}

/// Tensors of the whole model, whoever holds them.
std::vector<weights::TensorSpec> model_specs(const Trainer& trainer) {
  std::vector<weights::TensorSpec> specs;
  for (const Masters::Listed& listed : trainer.masters().listed()) {
    specs.push_back({listed.info.name, value_type(trainer, listed.info), listed.info.shape});
  }
  return specs;
}

std::vector<weights::TensorSpec> optimizer_specs(const Trainer& trainer) {
  std::vector<weights::TensorSpec> specs;
  for (const Masters::Listed& listed : trainer.masters().listed()) {
    if (!listed.trained) {
      continue;
    }
    const weights::DType type = value_type(trainer, listed.info);
    if (is_muon(trainer, listed.info)) {
      specs.push_back({listed.info.name + ".momentum", type, listed.info.shape});
      continue;
    }
    specs.push_back({listed.info.name + ".m", type, listed.info.shape});
    specs.push_back({listed.info.name + ".v", type, listed.info.shape});
  }
  return specs;
}

/// Who holds which part of every tensor, and who writes it.
class Shares {
 public:
  Shares(const Trainer& trainer, const CheckpointRank& rank) : trainer_(trainer), rank_(rank) {}

  /// What this rank holds of the model; with `written` what it alone writes.
  std::vector<TensorSlice> model_slices(bool written) const {
    std::vector<TensorSlice> slices;
    model::ModelParameters values = trainer_.masters().values();
    model::for_each_parameter(values, [&](const model::ParameterInfo& info, at::Tensor& value) {
      if (value.defined() && (!written || gives(info))) {
        slices.push_back(slice_of(info, info.name, 0, value));
      }
    });
    return slices;
  }

  std::vector<TensorSlice> optimizer_slices(bool written) const {
    std::map<std::string, const model::ParameterInfo*> by_name;
    for (const Masters::Listed& listed : trainer_.masters().listed()) {
      by_name[listed.info.name] = &listed.info;
    }
    std::vector<TensorSlice> slices;
    for (const Optimizer::State& state : trainer_.optimizer().states()) {
      const model::ParameterInfo& info = *by_name.at(state.name);
      if (!written || steps_alone(info)) {
        slices.push_back(slice_of(info, state.key(), state.begin, state.value));
      }
    }
    return slices;
  }

 private:
  mesh::ParameterShard shard(const model::ParameterInfo& info) const {
    if (rank_.mesh != nullptr) {
      return mesh::shard_of(info, *rank_.mesh);
    }
    mesh::ParameterShard whole;
    whole.part = {0, info.shape[0]};
    return whole;
  }
  TensorSlice slice_of(const model::ParameterInfo& info,
                       std::string name,
                       int64_t begin,
                       const at::Tensor& values) const {
    const mesh::ParameterShard cut = shard(info);
    return {.name = std::move(name),
            .shape = info.shape,
            .dim = cut.dim,
            .part = cut.part,
            .begin = begin,
            .values = values};
  }
  /// Whether this rank is the one of those that hold the part.
  bool gives(const model::ParameterInfo& info) const {
    if (rank_.mesh == nullptr) {
      return true;
    }
    const comm::Mesh& mesh = *rank_.mesh;
    const mesh::Sharding sharding = shard(info).sharding;
    const int part =
        sharding == mesh::Sharding::kWhole ? 0 : mesh.group(mesh::parts_axis(sharding)).rank();
    return mesh::giver_of(info.name, sharding, part, mesh.shape(), *rank_.stages) == mesh.rank();
  }
  /// Whether no other rank steps the same elements, or this is the one that counts.
  bool steps_alone(const model::ParameterInfo& info) const {
    if (rank_.mesh == nullptr) {
      return true;
    }
    const bool on_ends =
        info.role == model::ParameterRole::kEmbedding && rank_.stages->embedding_is_shared();
    return mesh::counts_in_norm(shard(info).sharding, on_ends, *rank_.mesh);
  }

  const Trainer& trainer_;
  const CheckpointRank& rank_;
};

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
  for (const Masters::Listed& listed : trainer.masters().listed()) {
    parameters.push_back({{"name", listed.info.name},
                          {"dtype", weights::dtype_name(value_type(trainer, listed.info))},
                          {"trained", listed.trained}});
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

void save_checkpoint(const fs::path& root,
                     const Trainer& trainer,
                     const SaveOptions& options,
                     const CheckpointRank& rank) {
  const std::string name = folder_name(trainer.next_step());
  const fs::path part = CommitFolder::path_of(root, name);
  std::optional<CommitFolder> folder;
  if (rank.is_first()) {
    folder.emplace(root, name);
    weights::SafetensorsWriter(part / kModelFile, model_specs(trainer)).reserve();
    weights::SafetensorsWriter(part / kOptimizerFile, optimizer_specs(trainer)).reserve();
  }
  rank.wait();
  const Shares shares(trainer, rank);
  write_slices(part / kModelFile, shares.model_slices(/*written=*/true));
  write_slices(part / kOptimizerFile, shares.optimizer_slices(/*written=*/true));
  rank.wait();
  if (folder) {
    write_synced(part / kMetaFile, meta_text(trainer, options.settings));
    std::vector<std::string> extra;
    for (const auto& [file, text] : options.extra_files) {
      write_synced(part / file, text);
      extra.push_back(file);
    }
    write_checksums(part, std::move(extra));
    folder->commit();
    point_to(root, name);
    remove_old(root, kPrefix, options.keep, name);
  }
  rank.wait();
}

bool restore_checkpoint(const fs::path& root,
                        Trainer& trainer,
                        const RunSettings& settings,
                        LoadOptimizer load_optimizer,
                        const CheckpointRank& rank) {
  const auto name = pointed_to(root);
  if (!name) {
    return false;
  }
  const fs::path folder = root / *name;
  if (rank.is_first()) {
    verify_checksums(folder);
  }
  rank.wait();
  const Meta meta = read_meta(folder / kMetaFile, settings);
  const Shares shares(trainer, rank);
  read_slices(folder / kModelFile, model_specs(trainer), shares.model_slices(/*written=*/false));
  if (load_optimizer == LoadOptimizer::kRequired) {
    read_slices(folder / kOptimizerFile,
                optimizer_specs(trainer),
                shares.optimizer_slices(/*written=*/false));
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
