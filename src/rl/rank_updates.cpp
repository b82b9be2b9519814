#include "rl/rank_updates.h"

#include <utility>

#include <ATen/ATen.h>

namespace baleen::rl {
namespace {

model::ModelParameters copy_of(const model::ModelParameters& values) {
  const at::NoGradGuard no_grad;
  model::ModelParameters out = values;
  model::for_each_parameter(out, [](const model::ParameterInfo&, at::Tensor& value) {
    value = value.defined() ? value.detach().clone() : value;
  });
  return out;
}

}  // namespace

std::filesystem::path checkpoint_root(const RlConfig& config) {
  return std::filesystem::path(config.out) / "checkpoints";
}

train::SaveOptions save_options(const RlConfig& config, const train::RunSettings& settings) {
  return {.settings = settings, .keep = static_cast<std::size_t>(config.keep_checkpoints)};
}

RankUpdates::RankUpdates(const RlConfig& config,
                         train::RunRank& rank,
                         const train::RunSettings& settings)
    : config_(config),
      rank_(rank),
      settings_(settings),
      passes_(rank.mesh_trainer() != nullptr ? passes_of(*rank.mesh_trainer())
                                             : passes_of(rank.trainer())),
      update_(config, *passes_) {
  if (config.kl_loss_coef != 0.0 || config.kl_coef != 0.0) {
    update_.set_reference(copy_of(rank.trainer().masters().values()));
  }
}

bool RankUpdates::restore() {
  return train::restore_checkpoint(checkpoint_root(config_),
                                   rank_.trainer(),
                                   settings_,
                                   train::LoadOptimizer::kRequired,
                                   rank_.checkpoint_rank());
}

void RankUpdates::save(std::map<std::string, std::string> extra_files) const {
  train::SaveOptions options = save_options(config_, settings_);
  options.extra_files = std::move(extra_files);
  train::save_checkpoint(
      checkpoint_root(config_), rank_.trainer(), options, rank_.checkpoint_rank());
}

}  // namespace baleen::rl
