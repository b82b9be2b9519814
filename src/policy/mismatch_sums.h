#pragma once
// Sums over the trained tokens of a step that the metrics of a correction are made of. Internal to
// the room; one thread.

#include <cstdint>
#include <limits>

#include "policy/correction.h"
#include "policy/numbers.h"

namespace baleen::policy {

struct MismatchSums {
  /// Of one row, before its denominators are known.
  struct RowSums {
    double tokens = 0.0;
    double old_logprob = 0.0;
    double rollout_logprob = 0.0;
    double ratio = 0.0;  // token ratio, unbounded
    double ratio_gap = 0.0;
    double bounded = 0.0;  // tokens whose weight met a bound
  };
  struct Spread {
    double sum = 0.0;
    double squares = 0.0;
    double min = std::numeric_limits<double>::infinity();
    double max = -std::numeric_limits<double>::infinity();
    void add(double value);
  };

  double tokens = 0.0;
  double rows = 0.0;
  double kl = 0.0;
  double k3 = 0.0;
  double token_squares = 0.0;  // of the token ratio
  double sequence_squares = 0.0;
  double training_ppl = 0.0;
  double rollout_ppl = 0.0;
  double log_ppl_diff = 0.0;
  Spread ratio;   // at the level of the weight, before bounds
  Spread weight;  // after
  double below = 0.0;
  double above = 0.0;
  double kept_tokens = 0.0;
  double kept_weight = 0.0;
  double rejected = 0.0;
  double veto_tokens = 0.0;
  double veto_rows = 0.0;
  double batch_norm_factor = 1.0;
  // Aggregated as the loss is.
  double ois = 0.0;
  double tis_abs = 0.0;
  double tis_clipfrac = 0.0;

  /// One trained token: its log-probabilities, the ratio its weight was made from, whether that
  /// left the bounds below or above, and whether the token stays.
  struct Token {
    double old_logprob = 0.0;
    double rollout_logprob = 0.0;
    double token_ratio = 1.0;
    double level_ratio = 1.0;
    double weight = 1.0;
    bool below = false;
    bool above = false;
    bool kept = true;
  };
  void add(const Token& token, RowSums& row);
  /// The row is complete; `share` is its metric_scale.
  void add(const RowSums& row, double sequence_ratio, double share);

  double ess_ratio() const;
  Metrics metrics(const CorrectionConfig& config) const;
};

}  // namespace baleen::policy
