#pragma once
// Scores the present weights on the evaluation's prompts: greedy answers, and one sampled answer
// each. One thread.
//
//   EvaluationReport report = evaluate(config, manager, source, {.sampled = true});

#include <cstdint>
#include <vector>

#include "rl/rollout_manager.h"

namespace baleen::rl {

struct EvaluationReport {
  double greedy = 0.0;               // mean score
  double greedy_error = 0.0;         // standard error of that mean
  double sampled = -1.0;             // pass@1 at the rollouts' temperature; -1: not asked for
  double truncated = 0.0;            // share of the greedy answers that hit the limit
  double length = 0.0;               // mean tokens of the greedy answers
  std::vector<RolloutGroup> groups;  // the greedy answers, one per prompt
};

EvaluationReport evaluate(const RlConfig& config,
                          RolloutManager& manager,
                          const PromptSource& source,
                          bool sampled);

}  // namespace baleen::rl
