#pragma once
// The start of a run: a checkpoint, or the nano model, taught by a teacher that is wrong half of
// the time; and its trainer handed over to the policy updates, behind a warm-up with the
// optimizer's moments. One thread.
//
//   if (!run_warm_up(config, events)) return;     // it was stopped, and saved
//   PolicyStart start = policy_start(config);
//   std::unique_ptr<train::RunRank> rank = start.single_rank();

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "rl/rl_config.h"
#include "rl/rl_run.h"
#include "train/run_rank.h"
#include "train/trainer.h"

namespace baleen::rl {

/// Supervised steps in OUT/sft; continues where it was ended. False when it was asked to stop.
bool run_warm_up(const RlConfig& config, const RlEvents& events);

/// What policy updates begin with, on one rank or on several.
struct PolicyStart {
  model::ModelParameters params;
  std::function<train::Masters(model::ModelParameters own)> make_masters;
  train::TrainerConfig trainer;
  /// Moments of the warm-up, by key, and the number of its steps; empty without one.
  std::map<std::string, at::Tensor> moments;
  int64_t steps = 0;

  /// Takes the parameters and the moments of what is still trained.
  std::unique_ptr<train::RunRank> single_rank();
};

/// The checkpoint, rounded in the forward as it is served; or what the warm-up left (fresh
/// parameters without), frozen as the config says, the schedule of the policy updates begun.
PolicyStart policy_start(const RlConfig& config);

}  // namespace baleen::rl
