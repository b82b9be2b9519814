#pragma once
// What the screen shows of a rollout: one line. Pure.
//
//   events.on_rollout = [](const RolloutLine& line) { puts(rollout_text(line).c_str()); };

#include <cstdint>
#include <string>

#include "rl/policy_update.h"
#include "rl/rl_metrics.h"
#include "rl/rollout_sample.h"

namespace baleen::rl {

struct RolloutLine {
  int64_t rollout = 0;
  int64_t num_rollouts = 0;
  double reward = 0.0;  // of the first round
  int64_t kept = 0;     // prompts
  int64_t judged = 0;
  double length = 0.0;  // mean tokens of an answer
  double entropy = 0.0;
  double gradient_norm = 0.0;
  double drift = 0.0;
  double agreement = 1.0;  // share of tokens with equal bits on both sides
  double generate_seconds = 0.0;
  double train_seconds = 0.0;
  int64_t version = 0;  // of the weights behind the rollout
};

RolloutLine rollout_line(const RlConfig& config,
                         const RolloutBatch& batch,
                         const UpdateReport& update,
                         const RolloutSeconds& seconds);

/// r 12 | reward 0.69 | kept 32/64 | ...
std::string rollout_text(const RolloutLine& line);

}  // namespace baleen::rl
