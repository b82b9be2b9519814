#include "policy/reward_shaping.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "policy/advantages.h"

namespace baleen::policy {
namespace {

constexpr double kNoSpread = 1e-8;
constexpr size_t kLongestPeriod = 128;
constexpr size_t kRepeats = 4;

double mean_value(std::span<const FilterSample> group) {
  double sum = 0.0;
  for (const FilterSample& sample : group) {
    sum += sample.value;
  }
  return group.empty() ? 0.0 : sum / static_cast<double>(group.size());
}

const char* pass_rate_bucket(double rate) {
  if (rate <= 0.0) {
    return "0";
  }
  if (rate >= 1.0) {
    return "1";
  }
  return rate <= 0.25 ? "le_0.25" : rate <= 0.5 ? "le_0.5" : rate <= 0.75 ? "le_0.75" : "lt_1";
}

}  // namespace

void OverlongConfig::validate() const {
  if (max_response_len > 0 && (buffer < 1 || buffer > max_response_len)) {
    throw ConfigError(fmt::format(
        "the overlong buffer must be from 1 to {} tokens, not {}", max_response_len, buffer));
  }
  if (!(factor >= 0.0)) {
    throw ConfigError(fmt::format("the overlong factor must be at least 0, not {}", factor));
  }
}

double overlong_penalty(int64_t length, const OverlongConfig& config) {
  if (config.max_response_len == 0) {
    return 0.0;
  }
  const auto beyond = static_cast<double>(length - (config.max_response_len - config.buffer));
  return std::min(-beyond / static_cast<double>(config.buffer) * config.factor, 0.0);
}

std::string drop_reason(std::span<const FilterSample> group, const FilterConfig& config) {
  const auto any = [&](SampleEnd end) {
    return std::any_of(group.begin(), group.end(), [end](const FilterSample& sample) {
      return sample.end == end;
    });
  };
  if (any(SampleEnd::kFailed)) {
    return "failed";
  }
  if (any(SampleEnd::kAborted)) {
    return "aborted";
  }
  const bool all_truncated =
      std::all_of(group.begin(), group.end(), [](const FilterSample& sample) {
        return sample.end == SampleEnd::kTruncated;
      });
  if (config.drop_all_truncated && all_truncated) {
    return "all_truncated";
  }
  std::vector<double> values;
  for (const FilterSample& sample : group) {
    values.push_back(sample.value);
  }
  if (config.nonzero_std && !(group_statistics(values, 1).deviation > kNoSpread)) {
    return fmt::format("zero_std_{:g}", mean_value(group));
  }
  return {};
}

void FilterCounts::add(std::span<const FilterSample> group, const std::string& reason) {
  ++attempted_;
  ++pass_rates_[pass_rate_bucket(mean_value(group))];
  const auto all_are = [&](double value) {
    return std::all_of(group.begin(), group.end(), [value](const FilterSample& sample) {
      return sample.value == value;
    });
  };
  all_zero_ += all_are(0.0) ? 1 : 0;
  all_one_ += all_are(1.0) ? 1 : 0;
  if (reason.empty()) {
    ++kept_;
  } else {
    ++dropped_[reason];
  }
}

std::string FilterCounts::summary(int64_t needed) const {
  return fmt::format(
      "kept {} of {} groups needed from {} attempted; all samples wrong in {}, right in {}: use "
      "prompts of middling difficulty, more samples per prompt, or filter = none",
      kept_,
      needed,
      attempted_,
      all_zero_,
      all_one_);
}

Metrics FilterCounts::metrics() const {
  Metrics metrics;
  const auto attempted = static_cast<double>(std::max<int64_t>(attempted_, 1));
  constexpr std::string_view kZeroStd = "zero_std_";
  for (const auto& [reason, count] : dropped_) {
    metrics.emplace_back("rollout/dynamic_filter/drop_" + reason, static_cast<double>(count));
    if (reason.starts_with(kZeroStd)) {
      metrics.emplace_back("rollout/zero_std/count_" + reason.substr(kZeroStd.size()),
                           static_cast<double>(count));
    }
  }
  metrics.emplace_back("rollout/zero_std/all_zero_percentage",
                       100.0 * static_cast<double>(all_zero_) / attempted);
  metrics.emplace_back("rollout/zero_std/all_one_percentage",
                       100.0 * static_cast<double>(all_one_) / attempted);
  metrics.emplace_back("rollout/attempts_per_kept_group",
                       attempted / static_cast<double>(std::max<int64_t>(kept_, 1)));
  for (const auto& [bucket, count] : pass_rates_) {
    metrics.emplace_back("passrate/" + bucket, static_cast<double>(count) / attempted);
  }
  return metrics;
}

double pass_at_k(int64_t samples, int64_t right, int64_t k) {
  BALEEN_CHECK(k >= 1 && k <= samples && right >= 0 && right <= samples,
               "k={} of {} samples, {} right",
               k,
               samples,
               right);
  // C(n - c, k) / C(n, k) as a product of k factors, each at most 1.
  double none = 1.0;
  for (int64_t i = 0; i < k; ++i) {
    const int64_t wrong_left = samples - right - i;
    if (wrong_left <= 0) {
      return 1.0;
    }
    none *= static_cast<double>(wrong_left) / static_cast<double>(samples - i);
  }
  return 1.0 - none;
}

bool repeats_at_end(std::span<const int32_t> tokens) {
  for (size_t period = 1; period <= kLongestPeriod && kRepeats * period <= tokens.size();
       ++period) {
    const auto tail = tokens.last(kRepeats * period);
    if (std::equal(tail.begin() + static_cast<ptrdiff_t>(period), tail.end(), tail.begin())) {
      return true;
    }
  }
  return false;
}

}  // namespace baleen::policy
