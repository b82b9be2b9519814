#include "rl/alarms.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace baleen::rl {
namespace {

constexpr std::size_t kSpan = 20;              // rollouts that trends are looked at over
constexpr std::size_t kLeastNorms = 5;         // rollouts before a norm can be unusual
constexpr double kFirstMeanDifference = 0.03;  // of the first rollout's log-probabilities
constexpr double kFirstDrift = 0.05;
constexpr double kEntropyFall = 5.0;
constexpr double kDriftGrowth = 2.0;
constexpr double kLeastKept = 0.1;
constexpr double kMostTruncated = 0.3;
constexpr double kNormJump = 10.0;

double value_or(const policy::Metrics& metrics, const char* name, double fallback) {
  for (const auto& [key, value] : metrics) {
    if (key == name) {
      return value;
    }
  }
  return fallback;
}

void keep(std::deque<double>& values, double value) {
  values.push_back(value);
  if (values.size() > kSpan) {
    values.pop_front();
  }
}

double median(std::deque<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::vector<std::string> Alarms::look(const policy::Metrics& metrics) {
  std::vector<std::string> found;
  const double kept = value_or(metrics, "rollout/kept_groups", 0.0);
  const double judged = value_or(metrics, "rollout/judged_groups", 0.0);
  if (judged > 0.0 && kept < kLeastKept * judged) {
    found.push_back(fmt::format(
        "{} of {} prompts passed the filter: they are too hard or too easy", kept, judged));
  }
  const double truncated = value_or(metrics, "rollout/truncated_ratio", 0.0);
  if (truncated > kMostTruncated) {
    found.push_back(
        fmt::format("{:.0f} % of the answers hit the length limit: raise rollout_max_response_len",
                    100.0 * truncated));
  }
  if (value_or(metrics, "train/optimizer_steps", 0.0) == 0.0) {
    found.push_back("too few prompts were kept for a step: the weights stay");
    return found;
  }
  const double drift = value_or(metrics, "drift/mean_abs", 0.0);
  const double difference = std::abs(value_or(metrics, "rollout/log_probs", 0.0) -
                                     value_or(metrics, "rollout/rollout_log_probs", 0.0));
  if (first_ && (difference > kFirstMeanDifference || drift > kFirstDrift)) {
    found.push_back(fmt::format(
        "engine and trainer differ by {:.4f} nats per token at the first rollout: run baleen rl "
        "parity",
        drift));
  }
  first_ = false;
  const double norm = value_or(metrics, "train/grad_norm", 0.0);
  if (norms_.size() >= kLeastNorms && norm > kNormJump * median(norms_)) {
    found.push_back(fmt::format(
        "the gradient norm {:.3g} is far above its median {:.3g}", norm, median(norms_)));
  }
  const double entropy = value_or(metrics, "rollout/entropy", 0.0);
  if (!entropies_.empty() && entropy * kEntropyFall < entropies_.front()) {
    found.push_back(
        fmt::format("the entropy fell from {:.3f} to {:.3f} in {} rollouts: answers "
                    "become alike",
                    entropies_.front(),
                    entropy,
                    entropies_.size()));
  }
  if (drifts_.size() == kSpan && drifts_.front() > 0.0 && drift > kDriftGrowth * drifts_.front()) {
    found.push_back(
        fmt::format("the drift grew from {:.2e} to {:.2e} in {} rollouts: run baleen rl parity",
                    drifts_.front(),
                    drift,
                    drifts_.size()));
  }
  keep(norms_, norm);
  keep(entropies_, entropy);
  keep(drifts_, drift);
  return found;
}

}  // namespace baleen::rl
