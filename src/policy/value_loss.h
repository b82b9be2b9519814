#pragma once
// The critic's loss and its gradient in the values; rows and denominators as in policy_loss.h.
//
//   ValueLoss loss = value_loss(rows, {.value_clip = 0.2}, totals);
//   loss.d_values[i][t];  loss.metrics();       // train/value_loss, train/value_clipfrac

#include <cstdint>
#include <span>
#include <vector>

#include "policy/aggregation.h"

namespace baleen::policy {

/// Arrays are over the response, as long as `mask`. A value is of the state before its token.
struct ValueRow {
  int64_t sample = 0;
  int32_t segment = 0;
  int64_t rollout = 0;
  std::span<const uint8_t> mask;
  Numbers values;
  Numbers old_values;
  Numbers returns;
};

struct ValueLossConfig {
  AggregationConfig aggregation;
  double value_clip = 0.2;
};

struct ValueLoss {
  double loss = 0.0;  // share of the step, by ascending (sample, segment)
  double clipfrac = 0.0;
  std::vector<std::vector<double>> d_values;  // by row; 0 where masked
  Metrics metrics() const {
    return {{"train/value_loss", loss}, {"train/value_clipfrac", clipfrac}};
  }
};

/// Throws Error naming the sample when an array is missing or an unmasked value is not finite.
ValueLoss value_loss(std::span<const ValueRow> rows,
                     const ValueLossConfig& config,
                     const StepTotals& totals);

}  // namespace baleen::policy
