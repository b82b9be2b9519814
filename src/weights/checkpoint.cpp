#include "weights/checkpoint.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "weights/config_json.h"
#include "weights/parameter_binding.h"
#include "weights/parameter_codec.h"

namespace baleen::weights {
namespace {

constexpr std::size_t kNamesShown = 5;

std::string some_names(const std::vector<std::string>& names) {
  const std::size_t shown = std::min(names.size(), kNamesShown);
  return fmt::format(
      "{}{}",
      fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
      names.size() > shown ? ", ..." : "");
}

/// Leaves the MTP blocks out of the configuration.
void drop_mtp(ModelConfig& config) {
  config.num_nextn_predict_layers = 0;
  config.layers.resize(static_cast<std::size_t>(config.num_hidden_layers));
}

}  // namespace

Checkpoint Checkpoint::open(const std::filesystem::path& folder, const OpenOptions& options) {
  if (!std::filesystem::is_directory(folder)) {
    throw CheckpointError(fmt::format("{}: not a folder", folder.string()));
  }
  const ParsedConfig parsed = read_config_json(folder / "config.json");
  Checkpoint checkpoint(ShardSet::open(folder));
  checkpoint.folder_ = folder;
  checkpoint.config_ = parsed.config;
  checkpoint.has_dspark_keys_ = parsed.has_dspark_keys;
  checkpoint.progress_ = options.progress;
  ModelConfig& config = checkpoint.config_;
  checkpoint.generation_ = read_generation_config(folder, config);
  ParameterBinding binding(checkpoint.shards_, config);
  // The port saves its config with the MTP key but without the MTP blocks.
  const bool mtp_not_saved = parsed.port_form && !binding.has_any_below("mtp.");
  if (config.num_nextn_predict_layers > 0 && (!options.load_mtp || mtp_not_saved)) {
    drop_mtp(config);
  }
  std::vector<std::string> missing;
  checkpoint.parameters_ = parameter_inventory(config);
  std::size_t num_stored = 0;
  for (const Parameter& parameter : checkpoint.parameters_) {
    StoredParameter stored;
    if (!binding.bind(parameter, stored)) {
      missing.push_back(parameter.name);
      continue;
    }
    num_stored += stored.scales.empty() ? 1 : 2;
    checkpoint.total_bytes_ += stored.values.size() + stored.scales.size();
    checkpoint.stored_.emplace(parameter.name, std::move(stored));
  }
  if (!missing.empty()) {
    throw CheckpointError(fmt::format("{}: {} of {} parameters are not stored: {}",
                                      folder.string(),
                                      missing.size(),
                                      checkpoint.parameters_.size(),
                                      some_names(missing)));
  }
  checkpoint.unused_ = binding.unused();
  std::vector<std::string> unexpected;
  std::copy_if(checkpoint.unused_.begin(),
               checkpoint.unused_.end(),
               std::back_inserter(unexpected),
               [&](const std::string& name) { return !binding.is_drafter(name); });
  if (!unexpected.empty()) {
    throw CheckpointError(fmt::format("{}: {} stored tensors belong to no parameter: {}",
                                      folder.string(),
                                      unexpected.size(),
                                      some_names(unexpected)));
  }
  for (const Parameter& parameter : checkpoint.parameters_) {
    if (parameter.kind == ParameterKind::kTable) {
      checkpoint.check_table(parameter);
    }
  }
  if (!checkpoint.unused_.empty()) {
    log::info("weights",
              "unused_tensors count={} names={}",
              checkpoint.unused_.size(),
              some_names(checkpoint.unused_));
  }
  log::info("weights",
            "checkpoint_checked folder={} files={} loaded={} expected={} tensors={} bytes={} "
            "experts={} mtp_blocks={}",
            folder.string(),
            checkpoint.shards_.num_files(),
            checkpoint.stored_.size(),
            checkpoint.parameters_.size(),
            num_stored,
            checkpoint.total_bytes_,
            weight_format_name(checkpoint.expert_format()),
            config.num_nextn_predict_layers);
  return checkpoint;
}

bool Checkpoint::contains(std::string_view name) const {
  return stored_.find(name) != stored_.end();
}

const StoredParameter& Checkpoint::stored(std::string_view name) const {
  const auto found = stored_.find(name);
  BALEEN_CHECK(found != stored_.end(), "no parameter {}", name);
  return found->second;
}

WeightFormat Checkpoint::expert_format() const {
  return format("layers.0.ffn.experts.0.w1.weight");
}

void Checkpoint::check_table(const Parameter& parameter) const {
  std::vector<int64_t> table(static_cast<std::size_t>(parameter.num_elements()));
  const StoredParameter& view = stored(parameter.name);
  decode_table(view.values, view.format, table);
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (table[i] < 0 || table[i] >= config_.n_routed_experts) {
      const auto width = static_cast<std::size_t>(parameter.shape[1]);
      throw CheckpointError(fmt::format("{}: tid2eid of token {} names expert {}, expected 0 to {}",
                                        view.source,
                                        i / width,
                                        table[i],
                                        config_.n_routed_experts - 1));
    }
  }
}

template <class T>
void Checkpoint::read(std::string_view name, std::span<T> values) const {
  const StoredParameter& view = stored(name);
  BALEEN_CHECK(view.format != WeightFormat::kI64 && view.format != WeightFormat::kI32,
               "{} is a table, read it with read_int64",
               name);
  try {
    decode_parameter(view.values, view.scales, view.shape, view.format, values);
  } catch (const CheckpointError& error) {
    throw CheckpointError(fmt::format("{}: {}", view.source, error.what()));
  }
  report_read(name);
}

void Checkpoint::read_float(std::string_view name, std::span<float> values) const {
  read(name, values);
}

void Checkpoint::read_double(std::string_view name, std::span<double> values) const {
  read(name, values);
}

void Checkpoint::read_int64(std::string_view name, std::span<int64_t> values) const {
  const StoredParameter& view = stored(name);
  decode_table(view.values, view.format, values);
  report_read(name);
}

void Checkpoint::report_read(std::string_view name) const {
  const StoredParameter& view = stored(name);
  const uint64_t bytes = view.values.size() + view.scales.size();
  const uint64_t done = done_bytes_->fetch_add(bytes) + bytes;
  if (progress_) {
    progress_(done, total_bytes_);
  }
}

}  // namespace baleen::weights
