#pragma once
// The model runner over the trainer's own weights, for rollouts.

#include <memory>

#include "engine/executor.h"
#include "model/parameters.h"
#include "rl/rl_config.h"

namespace baleen::apps {

/// `shown` shares its tensors with the trainer. Throws ConfigError for what cannot be rolled out.
std::unique_ptr<engine::Executor> make_rl_executor(model::ModelParameters shown,
                                                   const rl::RlConfig& config);

}  // namespace baleen::apps
