#include "rl/run_guards.h"

#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace baleen::rl {

RunGuards::RunGuards(const RlConfig& config, std::function<void(const std::string& line)> say)
    : config_(config), say_(std::move(say)), ess_guard_(config.min_ess) {}

void RunGuards::check(int64_t rollout, const UpdateReport& report) {
  if (config_.exactness != "off" && report.drift.all.max != 0.0) {
    throw Error(fmt::format(
        "rollout {}: engine and trainer differ by up to {:.3g} nats although exactness is {}: "
        "run baleen rl parity, or set exactness to off",
        rollout,
        report.drift.all.max,
        config_.exactness));
  }
  using EssVerdict = policy::EssGuard::Verdict;
  const EssVerdict verdict = ess_guard_.observe(report.least_ess);
  if (verdict == EssVerdict::kStop) {
    throw Error(fmt::format(
        "rollout {}: train/ess_ratio {:.3g} is below min_ess {} for the third time in a row: the "
        "rollout's policy and the trainer's have come apart; run baleen rl parity, or lower lr",
        rollout,
        report.least_ess,
        config_.min_ess));
  }
  if (verdict == EssVerdict::kWarn) {
    say_(fmt::format(
        "warning: rollout {}: train/ess_ratio {:.3g} is below 0.5", rollout, report.least_ess));
  }
}

void RunGuards::watch(const RolloutBatch& batch,
                      const UpdateReport& report,
                      const policy::Metrics& line) {
  policy::StepHealth health;
  health.step = batch.rollout_id;
  health.kept_groups = static_cast<int64_t>(batch.groups.size());
  health.attempted_groups = batch.counts.groups_judged;
  health.drift_samples = report.drift.worst_samples;
  if (report.steps > 0) {
    health.mean_old_logprob = policy::metric(line, "rollout/log_probs");
    health.mean_rollout_logprob = policy::metric(line, "rollout/rollout_log_probs");
    health.drift_mean_abs = report.drift.all.mean_abs;
    health.entropy = report.entropy;
    health.mean_response_len = policy::metric(line, "rollout/response_len/mean");
    health.truncated_ratio = policy::metric(line, "rollout/truncated_ratio");
    health.grad_norm = report.gradient_norm;
  }
  for (const policy::Alarm& alarm : alarms_.observe(health)) {
    say_(fmt::format("warning: rollout {}: {}", batch.rollout_id, alarm.message));
  }
}

}  // namespace baleen::rl
