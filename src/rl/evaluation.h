#pragma once
// Scores the present weights on the evaluation's prompts: greedy answers, and one sampled answer
// each. One thread.
//
//   EvaluationReport report = evaluate(config, manager, source, judge, /*sampled=*/true);

#include <cstdint>
#include <vector>

#include "rl/rollout_manager.h"

namespace baleen::rl {

struct EvaluationReport {
  std::vector<Prompt> prompts;
  std::vector<RolloutSample> greedy;   // one per prompt, in their order
  std::vector<RolloutSample> sampled;  // likewise, at the rollouts' temperature; where asked for
};

/// Mean score; 0 without answers.
double mean_score(const std::vector<RolloutSample>& answers);

EvaluationReport evaluate(const RlConfig& config,
                          RolloutManager& manager,
                          const PromptSource& source,
                          AnswerJudge& judge,
                          bool sampled);

}  // namespace baleen::rl
