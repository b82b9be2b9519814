#include "rl/rl_metrics.h"

#include <algorithm>
#include <string>

#include "base/process_figures.h"
#include "policy/rollout_metrics.h"

namespace baleen::rl {
namespace {

void add_cache(const RolloutBatch& batch, policy::Metrics& out) {
  double cached = 0.0;
  double prompts = 0.0;
  for (const RolloutGroup& group : batch.groups) {
    for (const RolloutSample& sample : group.samples) {
      cached += static_cast<double>(sample.cached_tokens);
      prompts += static_cast<double>(sample.prompt_tokens);
    }
  }
  out.emplace_back("rollout/prefix_cache_hit_rate", prompts > 0.0 ? cached / prompts : 0.0);
  out.emplace_back("rollout/avg_cached_tokens_per_sample",
                   cached / static_cast<double>(std::max<int64_t>(batch.num_samples(), 1)));
}

void add_counts(const RolloutBatch& batch, policy::Metrics& out) {
  const RolloutCounts& counts = batch.counts;
  out.emplace_back("rollout/kept_groups", static_cast<double>(batch.groups.size()));
  out.emplace_back("rollout/judged_groups", static_cast<double>(counts.groups_judged));
  out.emplace_back("rollout/submitted_groups", static_cast<double>(counts.groups_submitted));
  out.emplace_back("rollout/unfinished_groups", static_cast<double>(counts.unfinished));
  out.insert(out.end(), counts.filter.begin(), counts.filter.end());
  out.emplace_back("rollout/retries", static_cast<double>(counts.retries));
  out.emplace_back("reward/error_count", static_cast<double>(counts.reward_errors));
  out.emplace_back("reward/timeout_count", static_cast<double>(counts.reward_timeouts));
}

}  // namespace

policy::Metrics rollout_metrics(const RlConfig& config,
                                const RolloutBatch& batch,
                                const RolloutTimings& timings,
                                const UpdateReport& update,
                                int64_t version,
                                const RolloutSeconds& seconds) {
  policy::Metrics out = {{"train/step", static_cast<double>(batch.rollout_id)},
                         {"rollout/raw_reward", batch.counts.first_reward}};
  double kept_reward = 0.0;
  for (const RolloutGroup& group : batch.groups) {
    for (const RolloutSample& sample : group.samples) {
      kept_reward += sample.reward / static_cast<double>(batch.num_samples());
    }
  }
  out.emplace_back("rollout/kept_reward", kept_reward);
  out.insert(out.end(), update.metrics.begin(), update.metrics.end());
  add_counts(batch, out);
  add_cache(batch, out);
  out.emplace_back("train/optimizer_steps", static_cast<double>(update.steps));
  out.emplace_back("train/trained_tokens", static_cast<double>(update.trained_tokens));
  out.emplace_back("train/num_steps_per_rollout",
                   static_cast<double>(config.num_steps_per_rollout));
  out.emplace_back("weight_version", static_cast<double>(version));
  out.emplace_back("rollout/aborted_tokens", static_cast<double>(timings.aborted_tokens));
  out.emplace_back("rollout/resumed_tokens", static_cast<double>(timings.resumed_tokens));
  out.emplace_back("rollout/moved_samples", static_cast<double>(timings.moved_samples));
  out.emplace_back("rollout/engines", static_cast<double>(timings.engines));
  out.emplace_back("rollout/dropped_pending_len_mean", timings.dropped_pending_len_mean);
  out.emplace_back("reward/time_ms_p99", timings.reward_milliseconds_p99);
  out.emplace_back("perf/rollout_time", seconds.generate);
  out.emplace_back("perf/train_time", update.train_seconds);
  out.emplace_back("perf/actor_train_time", update.train_seconds - update.score_seconds);
  out.emplace_back("perf/log_probs_time", update.score_seconds);
  out.emplace_back("perf/update_weights_time", seconds.publish);
  out.emplace_back("perf/step_time", seconds.step);
  out.emplace_back("perf/rollout_tokens_per_sec",
                   seconds.generate > 0.0
                       ? static_cast<double>(timings.generated_tokens) / seconds.generate
                       : 0.0);
  out.emplace_back("perf/peak_mem_bytes/train", process_memory_bytes("VmHWM"));
  return out;
}

policy::Metrics evaluation_metrics(const std::string& name, const EvaluationReport& report) {
  const auto answers_of = [](const std::vector<RolloutSample>& samples) {
    std::vector<policy::EvalAnswer> answers;
    for (const RolloutSample& sample : samples) {
      answers.push_back({.prompt = sample.index,
                         .sample = sample.index,
                         .score = sample.reward,
                         .right = sample.filter_reward() >= 1.0,
                         .truncated = sample.status == SampleStatus::kTruncated,
                         .response_len = sample.response_tokens()});
    }
    return answers;
  };
  const auto is_pass_rate = [](const auto& entry) {
    return entry.first.find("-pass@") != std::string::npos;
  };
  policy::Metrics out = policy::eval_metrics(name, answers_of(report.greedy));
  std::erase_if(out, is_pass_rate);  // of sampled answers alone
  for (const auto& entry : policy::eval_metrics(name, answers_of(report.sampled))) {
    if (is_pass_rate(entry)) {
      out.push_back(entry);
    }
  }
  return out;
}

}  // namespace baleen::rl
