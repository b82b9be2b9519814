#pragma once
// From per-token losses to one number. Each token's loss is multiplied by a coefficient that holds
// the denominators of the whole optimizer step, so that micro-batches and ranks are added up, never
// averaged. Pure functions.
//
//   LossDenominators totals = count_targets(lengths_and_weights, LossAggregation::kTokenMean);
//   double c = loss_coefficient(weight, sample_weight_sum, totals);

#include <cstdint>
#include <string_view>

namespace baleen::train {

enum class LossAggregation : uint8_t {
  kTokenMean,   // sum over all tokens / sum of all weights
  kSampleMean,  // mean over the samples of each one's weighted mean
  kConstant,    // sum over all tokens / (samples * constant_length)
};

/// token_mean, sample_mean or const. Throws ConfigError naming any other name.
LossAggregation parse_loss_aggregation(std::string_view name);

/// Totals of one optimizer step. Samples without a target count as samples and add nothing.
struct LossDenominators {
  LossAggregation aggregation = LossAggregation::kTokenMean;
  double weight = 0.0;      // sum over all targets
  double mtp_weight = 0.0;  // sum over the targets of the MTP block: those from the third token on
  double samples = 0.0;
  double constant_length = 1.0;  // tokens, for kConstant
};

/// Of one token with `weight`, in a sample whose weights add up to `sample_weight`; `total_weight`
/// is one of the two sums of `totals`. 0 where there is nothing to divide by.
double loss_coefficient(double weight,
                        double sample_weight,
                        double total_weight,
                        const LossDenominators& totals);

}  // namespace baleen::train
