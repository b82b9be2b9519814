#include "policy/alarms.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace baleen::policy {
namespace {

constexpr double kLogprobGap = 0.03;
constexpr double kDrift = 0.05;
constexpr double kRefGap = 1e-8;
constexpr double kRefGapWithReplay = 5e-3;
constexpr double kHighEntropy = 0.7;
constexpr double kEntropyFall = 5.0;
constexpr double kDriftGrowth = 2.0;
constexpr double kDriftFloor = 1e-6;  // below it growth is rounding
constexpr double kSameLength = 0.1;
constexpr double kFewGroups = 0.1;
constexpr double kManyTruncated = 0.3;
constexpr double kSpike = 10.0;
constexpr size_t kPastSteps = 20;
constexpr size_t kNormWindow = 50;
constexpr size_t kFewestNorms = 5;
constexpr size_t kNamedSamples = 8;

std::string look_at(const std::vector<int64_t>& samples) {
  if (samples.empty()) {
    return {};
  }
  const size_t count = std::min(samples.size(), kNamedSamples);
  return fmt::format(
      "; look at samples {}",
      fmt::join(samples.begin(), samples.begin() + static_cast<ptrdiff_t>(count), ", "));
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::vector<Alarm> Alarms::observe(const StepHealth& health) {
  std::vector<Alarm> alarms;
  if (health.attempted_groups > 0 &&
      static_cast<double>(health.kept_groups) <
          kFewGroups * static_cast<double>(health.attempted_groups)) {
    alarms.push_back({"few_groups",
                      fmt::format("{} of {} groups passed the filter, below 10 %: the prompts are "
                                  "too easy or too hard",
                                  health.kept_groups,
                                  health.attempted_groups)});
  }
  if (health.truncated_ratio && *health.truncated_ratio > kManyTruncated) {
    alarms.push_back({"truncated",
                      fmt::format("{:.3g} of the samples ended at the length limit, above 0.3: "
                                  "raise rollout_max_response_len or shape the length{}",
                                  *health.truncated_ratio,
                                  look_at(health.truncated_samples))});
  }
  if (first_ && (health.drift_mean_abs || health.mean_old_logprob || health.mean_abs_ref_old ||
                 health.entropy)) {
    first_step(health, alarms);
    first_ = false;
  }
  against_past(health, alarms);
  gradient(health, alarms);
  past_.push_back({health.drift_mean_abs, health.mean_response_len, health.entropy});
  if (past_.size() > kPastSteps) {
    past_.pop_front();
  }
  return alarms;
}

void Alarms::first_step(const StepHealth& health, std::vector<Alarm>& alarms) const {
  if (health.mean_old_logprob && health.mean_rollout_logprob) {
    const double gap = std::abs(*health.mean_old_logprob - *health.mean_rollout_logprob);
    if (!(gap <= kLogprobGap)) {
      alarms.push_back({"logprob_gap",
                        fmt::format("trainer and rollout differ by {:.3g} in mean log-probability "
                                    "at the first step, above 0.03: run baleen rl parity{}",
                                    gap,
                                    look_at(health.drift_samples)),
                        config_.strict});
    }
  }
  if (health.drift_mean_abs && !(*health.drift_mean_abs <= kDrift)) {
    alarms.push_back({"drift",
                      fmt::format("drift {:.3g} at the first step, above 0.05: run baleen rl "
                                  "parity{}",
                                  *health.drift_mean_abs,
                                  look_at(health.drift_samples)),
                      config_.strict});
  }
  const double ref_bound = config_.replay ? kRefGapWithReplay : kRefGap;
  if (config_.ref_is_actor && health.mean_abs_ref_old && !(*health.mean_abs_ref_old <= ref_bound)) {
    alarms.push_back({"ref_gap",
                      fmt::format("the reference holds the actor's weights, yet their "
                                  "log-probabilities differ by {:.3g}, above {:g}",
                                  *health.mean_abs_ref_old,
                                  ref_bound)});
  }
  if (config_.tuned_model && health.entropy &&
      !(*health.entropy > 0.0 && *health.entropy < kHighEntropy)) {
    alarms.push_back({"entropy",
                      fmt::format("entropy {:.3g} at the start of a tuned model, outside (0, 0.7): "
                                  "check temperature and chat format",
                                  *health.entropy)});
  }
}

void Alarms::against_past(const StepHealth& health, std::vector<Alarm>& alarms) const {
  if (past_.size() < kPastSteps) {
    return;
  }
  const Past& then = past_.front();
  const bool same_length =
      !then.length || !health.mean_response_len ||
      std::abs(*health.mean_response_len - *then.length) <= kSameLength * *then.length;
  if (health.drift_mean_abs && then.drift && same_length &&
      *health.drift_mean_abs > kDriftGrowth * std::max(*then.drift, kDriftFloor)) {
    alarms.push_back({"drift_growth",
                      fmt::format("drift went from {:.3g} to {:.3g} in 20 steps at equal lengths: "
                                  "run baleen rl parity{}",
                                  *then.drift,
                                  *health.drift_mean_abs,
                                  look_at(health.drift_samples))});
  }
  if (health.entropy && then.entropy && *then.entropy > kEntropyFall * *health.entropy) {
    alarms.push_back(
        {"entropy_fall",
         fmt::format("entropy fell from {:.3g} to {:.3g} in 20 steps: the policy stops "
                     "exploring; raise eps_clip_high or lower the learning rate",
                     *then.entropy,
                     *health.entropy)});
  }
}

void Alarms::gradient(const StepHealth& health, std::vector<Alarm>& alarms) {
  if (!health.grad_norm) {
    return;
  }
  if (grad_norms_.size() >= kFewestNorms) {
    const double usual = median({grad_norms_.begin(), grad_norms_.end()});
    if (!(*health.grad_norm <= kSpike * usual)) {
      alarms.push_back({"grad_norm",
                        fmt::format("gradient norm {:.3g} is above ten times its median {:.3g}{}",
                                    *health.grad_norm,
                                    usual,
                                    look_at(health.longest_samples)),
                        false,
                        config_.skip_on_spike});
    }
  }
  if (std::isfinite(*health.grad_norm)) {
    grad_norms_.push_back(*health.grad_norm);
    if (grad_norms_.size() > kNormWindow) {
      grad_norms_.pop_front();
    }
  }
}

}  // namespace baleen::policy
