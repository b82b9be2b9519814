#include "rl/warm_up.h"

#include <map>
#include <string>
#include <utility>

#include <ATen/ATen.h>

#include "base/check.h"
#include "base/error.h"
#include "model/load_parameters.h"
#include "train/nano_model.h"
#include "train/run_sources.h"
#include "train/sft_run.h"
#include "train/train_checkpoint.h"

namespace baleen::rl {
namespace {

constexpr int64_t kWarmUpSaves = 20;  // steps between its checkpoints

/// The run's optimizer, so that its moments can be handed over, at a rate of its own that stays;
/// weights do not decay while the teacher is copied.
train::OptimizerOptions warm_up_optimizer(const RlConfig& config) {
  train::OptimizerOptions out = config;
  out.lr = config.sft_lr;
  out.min_lr = 0.0;
  out.lr_warmup_steps = config.sft_warmup_steps;
  out.lr_decay_style = "constant";
  out.wsd_decay_steps = 0;
  out.weight_decay = 0.0;
  return out;
}

train::SftConfig warm_up_config(const RlConfig& config) {
  train::SftConfig sft = train::default_config(config.task);
  sft.output = (std::filesystem::path(config.out) / "sft").string();
  sft.seed = config.seed;
  sft.steps = config.sft_steps;
  sft.global_batch_size = config.sft_batch_size;
  static_cast<train::OptimizerOptions&>(sft) = warm_up_optimizer(config);
  sft.save_interval = kWarmUpSaves;
  sft.threads = config.threads;
  sft.shards = config.shards;
  return sft;
}

train::TrainerConfig policy_trainer_config(const RlConfig& config, bool rounded) {
  train::TrainerConfig out;
  out.objective.numerics = ops::Numerics::by_name(trainer_numerics(config, rounded));
  train::apply(config, policy_steps(config), out);
  out.micro_batch_tokens = config.micro_batch_tokens;
  out.shards = config.shards;
  return out;
}

train::FreezeConfig frozen_parts(const RlConfig& config) {
  return {.gate = config.freeze_gate, .indexer = config.freeze_indexer, .mtp = true};
}

std::map<std::string, at::Tensor> moments_of(const train::Trainer& trainer) {
  std::map<std::string, at::Tensor> moments;
  for (const train::Optimizer::State& state : trainer.optimizer().states()) {
    moments.emplace(state.key(), state.value);
  }
  return moments;
}

PolicyStart start_with(const RlConfig& config, model::ModelParameters params) {
  const bool rounded = params.config.quantization_config.has_value();
  PolicyStart start;
  start.params = std::move(params);
  start.trainer = policy_trainer_config(config, rounded);
  start.make_masters = [config, rounded](model::ModelParameters own) {
    const train::FreezeRules rules(frozen_parts(config), own);
    return train::Masters(std::move(own),
                          rules,
                          rounded ? train::WeightRounding::kServed : train::WeightRounding::kNone);
  };
  return start;
}

}  // namespace

bool run_warm_up(const RlConfig& config, const RlEvents& events) {
  if (config.sft_steps == 0) {
    return true;
  }
  const train::SftSummary summary =
      train::run_sft(warm_up_config(config),
                     {.say = events.say,
                      .on_step =
                          [&](const train::StepReport& report, const train::SftProgress& progress) {
                            if (events.on_warm_up) {
                              events.on_warm_up(report, progress.num_steps);
                            }
                          },
                      .stop = events.stop});
  return !summary.stopped || summary.next_step >= config.sft_steps;
}

std::unique_ptr<train::RunRank> PolicyStart::single_rank() {
  std::unique_ptr<train::RunRank> rank =
      train::single_rank(make_masters(std::move(params)), trainer);
  if (moments.empty()) {
    return rank;
  }
  const at::NoGradGuard no_grad;
  train::Optimizer& optimizer = rank->trainer().optimizer();
  for (const train::Optimizer::State& state : optimizer.states()) {
    const auto found = moments.find(state.key());
    BALEEN_CHECK(found != moments.end(), "{} was not trained in the warm-up", state.key());
    state.value.copy_(found->second);
  }
  optimizer.set_num_steps(steps);
  return rank;
}

PolicyStart policy_start(const RlConfig& config) {
  if (!config.model.empty()) {
    return start_with(
        config,
        model::load_parameters(config.model, at::TensorOptions(at::kFloat), /*with_mtp=*/true));
  }
  const train::SftConfig sft = warm_up_config(config);
  if (config.sft_steps == 0) {
    return start_with(
        config,
        train::fresh_nano(train::nano_config(), static_cast<uint64_t>(config.seed), at::kFloat));
  }
  train::RunSources sources = train::open_sources(sft);
  const train::FreezeRules rules(train::freeze_config(sft), sources.params);
  train::Trainer warm(train::Masters(std::move(sources.params), rules, sources.rounding),
                      train::trainer_config(sft, sources.numerics));
  const std::filesystem::path saved = std::filesystem::path(sft.output) / "checkpoints";
  if (!train::restore_checkpoint(saved, warm, sources.settings)) {
    throw CheckpointError(saved.string() + ": the warm-up left no checkpoint");
  }
  PolicyStart start = start_with(config, warm.masters().values());
  start.moments = moments_of(warm);
  start.steps = warm.optimizer().num_steps();
  return start;
}

}  // namespace baleen::rl
