#include "rl/evaluation.h"

#include <algorithm>

namespace baleen::rl {
namespace {

constexpr uint64_t kEvaluationDraws = 999;  // seed; never that of a rollout's stream

}  // namespace

double mean_score(const std::vector<RolloutSample>& answers) {
  double sum = 0.0;
  for (const RolloutSample& sample : answers) {
    sum += sample.reward;
  }
  return sum / static_cast<double>(std::max<std::size_t>(answers.size(), 1));
}

EvaluationReport evaluate(const RlConfig& config,
                          RolloutManager& manager,
                          const PromptSource& source,
                          AnswerJudge& judge,
                          bool sampled) {
  EvaluationReport report;
  const int64_t count = std::min(config.eval_prompts, source.num_evaluation_prompts());
  for (int64_t i = 0; i < count; ++i) {
    report.prompts.push_back(source.evaluation_prompt(i));
  }
  report.greedy = manager.answer(report.prompts, 0.0, kEvaluationDraws, judge);
  if (sampled) {
    report.sampled =
        manager.answer(report.prompts, config.rollout_temperature, kEvaluationDraws, judge);
  }
  return report;
}

}  // namespace baleen::rl
