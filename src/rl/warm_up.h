#pragma once
// The start of a run: a checkpoint, or the nano model, taught by a teacher that is wrong half of
// the time; and its trainer handed over to the policy updates, behind a warm-up with the
// optimizer's moments. One thread.
//
//   StartFiles files = open_start(config);
//   if (!run_warm_up(config, events)) return;     // it was stopped, and saved
//   train::Trainer trainer = policy_trainer(config);

#include <filesystem>
#include <memory>

#include "rl/rl_config.h"
#include "rl/rl_run.h"
#include "text/output_stream.h"
#include "text/tokenizer.h"
#include "train/trainer.h"

namespace baleen::rl {

/// How the model is spoken to.
struct StartFiles {
  std::shared_ptr<const text::Tokenizer> tokenizer;  // shared with engines and prompts
  text::ChatProfile profile = text::ChatProfile::kV4;
};

/// Throws ConfigError when prompts and answers of the config do not fit into the model's positions,
/// else naming file or key.
StartFiles open_start(const RlConfig& config);

/// Supervised steps in OUT/sft; continues where it was ended. False when it was asked to stop.
bool run_warm_up(const RlConfig& config, const RlEvents& events);

/// Masters of the checkpoint, rounded in the forward as it is served; or as the warm-up left them
/// (fresh ones without), frozen as the config says, moments of
/// what is still trained kept, the schedule of the policy updates begun.
train::Trainer policy_trainer(const RlConfig& config);

}  // namespace baleen::rl
