#include "rl/evaluation.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace baleen::rl {
namespace {

constexpr uint64_t kEvaluationDraws = 999;  // seed; never that of a rollout's stream

double mean_reward(const std::vector<RolloutSample>& samples) {
  double sum = 0.0;
  for (const RolloutSample& sample : samples) {
    sum += sample.filter_reward();
  }
  return sum / static_cast<double>(std::max<std::size_t>(samples.size(), 1));
}

}  // namespace

EvaluationReport evaluate(const RlConfig& config,
                          RolloutManager& manager,
                          const PromptSource& source,
                          bool sampled) {
  EvaluationReport report;
  const int64_t count = std::min(config.eval_prompts, source.num_evaluation_prompts());
  std::vector<Prompt> prompts;
  for (int64_t i = 0; i < count; ++i) {
    prompts.push_back(source.evaluation_prompt(i));
  }
  std::vector<RolloutSample> greedy = manager.answer(prompts, 0.0, kEvaluationDraws);
  report.greedy = mean_reward(greedy);
  const auto n = static_cast<double>(std::max<std::size_t>(greedy.size(), 1));
  double squares = 0.0;
  for (const RolloutSample& sample : greedy) {
    squares += std::pow(sample.filter_reward() - report.greedy, 2);
    report.truncated += sample.status == SampleStatus::kTruncated ? 1.0 / n : 0.0;
    report.length += static_cast<double>(sample.response_tokens()) / n;
  }
  report.greedy_error = n > 1.0 ? std::sqrt(squares / (n - 1.0) / n) : 0.0;
  if (sampled) {
    report.sampled =
        mean_reward(manager.answer(prompts, config.rollout_temperature, kEvaluationDraws));
  }
  for (std::size_t i = 0; i < greedy.size(); ++i) {
    RolloutGroup& group = report.groups.emplace_back();
    group.prompt = std::move(prompts[i]);
    group.samples.push_back(std::move(greedy[i]));
  }
  return report;
}

}  // namespace baleen::rl
