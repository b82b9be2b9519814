#pragma once
// The start of a run: the nano model, taught by a teacher that is wrong half of the time, and its
// trainer handed over to the policy updates with the optimizer's moments. One thread.
//
//   if (!run_warm_up(config, events)) return;     // it was stopped, and saved
//   train::Trainer trainer = policy_trainer(config);

#include <filesystem>

#include "rl/rl_config.h"
#include "rl/rl_run.h"
#include "train/trainer.h"

namespace baleen::rl {

/// Supervised steps in OUT/sft; continues where it was ended. False when it was asked to stop.
bool run_warm_up(const RlConfig& config, const RlEvents& events);

/// Masters as the warm-up left them (fresh ones without), frozen as the config says, moments of
/// what is still trained kept, the schedule of the policy updates begun.
train::Trainer policy_trainer(const RlConfig& config);

}  // namespace baleen::rl
