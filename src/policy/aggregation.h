#pragma once
// From token values to the loss of an optimizer step. The denominators are those of the whole step
// (every rank, every micro-batch), known before the first backward; parts are then added, never
// averaged. Rejected tokens (corrections) do not change them.
//
//   StepTotals totals = step_totals(rows);                    // of this rank
//   totals.add(step_totals(rows_of_other_rank));              // of the step
//   double share = row_scale(totals, config, rollout) * sum_over_t_of(mask * x);

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "policy/policy_row.h"

namespace baleen::policy {

enum class LossAgg {
  kSampleMean,  // (1/B) sum_i [ sum_t m x / max(n_i, 1) ]
  kTokenMean,   // sum_i sum_t m x / max(N, 1)
  kConst,       // sum_i sum_t m x / (B * constant_length)
};
const char* loss_agg_name(LossAgg agg);  // sample_mean, token_mean, const
std::optional<LossAgg> parse_loss_agg(std::string_view name);

struct AggregationConfig {
  LossAgg agg = LossAgg::kSampleMean;
  double constant_length = 0.0;     // tokens; kConst only: rollout_max_response_len
  bool count_empty_samples = true;  // rollouts without a trained token count in B
  void validate() const;            // throws ConfigError
};

struct StepTotals {
  std::map<int64_t, int64_t> tokens_of_rollout;  // n_i by rollout id; has every rollout

  /// Adds the rows of another rank or part of the step; a rollout may have rows in both.
  void add(const StepTotals& other);
  int64_t tokens() const;                                        // N
  int64_t rollouts(const AggregationConfig& aggregation) const;  // B
};

StepTotals step_totals(std::span<const PolicyRow> rows);

/// Factor of the masked token sums of `row` in the loss; 0 where nothing is trained in the step.
double row_scale(const StepTotals& totals, const AggregationConfig& config, int64_t rollout);
/// The same for reported shares and means: kConst counts like kTokenMean, so that shares stay
/// shares.
double metric_scale(const StepTotals& totals, const AggregationConfig& config, int64_t rollout);

}  // namespace baleen::policy
