#pragma once
// What is done with scores before advantages: the overlong penalty, the group filter with its
// counts, pass@k, the mark of repetition. Pure, but for FilterCounts (one owner, one thread).
//
//   double r = score + overlong_penalty(length, {.max_response_len = 20480, .buffer = 4096});
//   std::string reason = drop_reason(group, {});       // empty: the group is kept

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "policy/numbers.h"

namespace baleen::policy {

struct OverlongConfig {
  int64_t max_response_len = 0;  // tokens; 0: no penalty
  int64_t buffer = 0;            // tokens below it in which the penalty grows
  double factor = 1.0;
  void validate() const;  // throws ConfigError
};
/// min(-(length - (max - buffer)) / buffer * factor, 0). Source: DAPO, soft overlong punishment.
double overlong_penalty(int64_t length, const OverlongConfig& config);

/// How a sample ended, as far as filters care.
enum class SampleEnd { kCompleted, kTruncated, kAborted, kFailed };

struct FilterSample {
  double value = 0.0;  // correctness (acc) where there is one, else the score before shaping
  SampleEnd end = SampleEnd::kCompleted;
};

struct FilterConfig {
  bool nonzero_std = true;  // keep a group only where the values differ: deviation above 1e-8
  bool drop_all_truncated = false;
};

/// zero_std_<value>, aborted, failed, all_truncated, or empty for a group to keep.
std::string drop_reason(std::span<const FilterSample> group, const FilterConfig& config);

/// Over the groups of one rollout.
class FilterCounts {
 public:
  /// `reason`: of drop_reason.
  void add(std::span<const FilterSample> group, const std::string& reason);
  int64_t attempted() const { return attempted_; }
  int64_t kept() const { return kept_; }
  /// One sentence for the message of a filter that never fills: kept, needed, all-zero, all-one.
  std::string summary(int64_t needed) const;
  /// rollout/dynamic_filter/drop_<reason>, rollout/zero_std/*, rollout/attempts_per_kept_group,
  /// passrate/<bucket> (share of attempted groups by their share of right samples).
  Metrics metrics() const;

 private:
  int64_t attempted_ = 0;
  int64_t kept_ = 0;
  int64_t all_zero_ = 0;
  int64_t all_one_ = 0;
  std::map<std::string, int64_t> dropped_;
  std::map<std::string, int64_t> pass_rates_;
};

/// 1 - C(n - c, k) / C(n, k): that a draw of k of n samples has one of the c right ones.
double pass_at_k(int64_t samples, int64_t right, int64_t k);

/// Whether the tail repeats: a period of at most 128 tokens, 4 times or more.
bool repeats_at_end(std::span<const int32_t> tokens);

}  // namespace baleen::policy
