#include "rl/rollout_engines.h"

#include <string>

#include <fmt/format.h>

#include "base/error.h"
#include "model/contract.h"
#include "rl/numeric_cell.h"

namespace baleen::rl {
namespace {

constexpr int32_t kQueuedAnswers = 1 << 20;

/// The same tensors without gradients.
model::ModelParameters read_only(const model::ModelParameters& leaves) {
  model::ModelParameters out = leaves;
  model::for_each_parameter(out, [](const model::ParameterInfo&, at::Tensor& value) {
    value = value.defined() ? value.detach() : value;
  });
  return out;
}

/// Engine and trainer must compute alike, but where they are meant not to.
void check_contract(const RlConfig& config,
                    const std::string& engines,
                    const std::string& trainers) {
  if (config.exactness != "off" && engines != trainers) {
    throw ConfigError(
        fmt::format("exactness {}: the engine computes by contract {}, the trainer by {}; see "
                    "baleen rl parity, or set --exactness off",
                    config.exactness,
                    engines,
                    trainers));
  }
}

engine::EngineConfig engine_config(const RlConfig& config,
                                   const text::Tokenizer& tokenizer,
                                   int64_t version) {
  engine::EngineConfig out = engine::EngineConfig::for_tokenizer(tokenizer);
  out.max_running = static_cast<int32_t>(config.max_running);
  out.max_queued = kQueuedAnswers;
  out.max_prefills = static_cast<int32_t>(config.max_running);
  out.weight_version = std::to_string(version);
  return out;
}

}  // namespace

RolloutEngines::RolloutEngines(const RlConfig& config,
                               const ExecutorMaker& make_executor,
                               const std::shared_ptr<const text::Tokenizer>& tokenizer,
                               train::RunRank& rank,
                               const model::ModelParameters& leaves,
                               int64_t version) {
  const bool rounded = config.rollout_quant != "none";
  const model::ModelParameters served =
      rounded ? numeric_side(leaves, config.rollout_quant).params : read_only(leaves);
  for (int64_t i = 0; i < config.rollout_engines; ++i) {
    engines_.push_back(std::make_unique<engine::Engine>(
        engine_config(config, *tokenizer, version),
        make_executor(served, config),
        tokenizer,
        *registries_.emplace_back(std::make_unique<MetricRegistry>())));
    engines_.back()->start();
  }
  const train::Trainer& trainer = rank.trainer();
  const std::string contract = first().executor_info().contract;
  check_contract(
      config, contract, model::contract_digest(served, trainer.config().objective.numerics));
  if (rounded || rank.mesh_trainer() != nullptr) {
    copies_ = std::make_unique<CopyPublisher>(
        rounded ? config.rollout_quant : std::string("f32"), served, contract);
  } else {
    publisher_ = std::make_unique<SharedPublisher>(trainer.masters(), contract);
  }
}

std::vector<engine::Engine*> RolloutEngines::all() const {
  std::vector<engine::Engine*> out;
  for (const auto& engine : engines_) {
    out.push_back(engine.get());
  }
  return out;
}

void RolloutEngines::publish(const model::ModelParameters& leaves, int64_t version) {
  if (copies_) {
    copies_->take(leaves);
  }
  WeightPublisher& publisher = copies_ ? *copies_ : *publisher_;
  for (const auto& engine : engines_) {
    publisher.publish(*engine, version);
  }
}

void RolloutEngines::stop() {
  for (const auto& engine : engines_) {
    engine->stop();
  }
}

}  // namespace baleen::rl
