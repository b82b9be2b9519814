#include "train/loss_scale.h"

#include <string>

#include "base/error.h"

namespace baleen::train {

LossAggregation parse_loss_aggregation(std::string_view name) {
  if (name == "token_mean") {
    return LossAggregation::kTokenMean;
  }
  if (name == "sample_mean") {
    return LossAggregation::kSampleMean;
  }
  if (name == "const") {
    return LossAggregation::kConstant;
  }
  throw ConfigError("loss_agg: \"" + std::string(name) +
                    "\" is none of token_mean, sample_mean, const");
}

double loss_coefficient(double weight,
                        double sample_weight,
                        double total_weight,
                        const LossDenominators& totals) {
  if (weight == 0.0) {
    return 0.0;
  }
  switch (totals.aggregation) {
    case LossAggregation::kTokenMean:
      return weight / total_weight;
    case LossAggregation::kSampleMean:
      return weight / sample_weight / totals.samples;
    case LossAggregation::kConstant:
      return weight / (totals.samples * totals.constant_length);
  }
  return 0.0;
}

}  // namespace baleen::train
