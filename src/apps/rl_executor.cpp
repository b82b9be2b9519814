#include "apps/rl_executor.h"

#include <algorithm>
#include <utility>

#include "model/forward.h"
#include "runner/model_executor.h"

namespace baleen::apps {
namespace {

constexpr int32_t kStepTokens = 4096;

}  // namespace

std::unique_ptr<engine::Executor> make_rl_executor(model::ModelParameters shown,
                                                   const rl::RlConfig& config) {
  model::ForwardConfig forward;
  forward.numerics = rl::rollout_numerics(config, shown.config.quantization_config.has_value());
  forward.record_choices = config.replay != "none";
  forward.num_threads = static_cast<int32_t>(config.threads);
  runner::RunnerConfig runner;
  runner.num_slots = static_cast<int32_t>(config.max_running);
  runner.max_step_tokens = std::max(kStepTokens, runner.num_slots);
  runner.cache_bytes = config.rollout_cache_mb << 20;
  return std::make_unique<runner::ModelExecutor>(
      model::Model(std::move(shown), forward), runner, "policy");
}

}  // namespace baleen::apps
