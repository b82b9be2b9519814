#pragma once
// The policy loss of a micro-batch and its gradient in the log-probabilities, as pure numbers: the
// trainer computes l as a tensor, hands the values here, and calls l.backward(d_logprobs). Rows
// share nothing but denominators, so any split into micro-batches adds up to the same step.
//
//   StepTotals totals = step_totals(all_rows_of_the_step);
//   for (micro-batch) {
//     PolicyLoss loss = policy_loss(rows, config, totals);
//     // rows[i] -> loss.rows[i].d_logprobs[t] (and d_entropy where entropy_coef != 0)
//     report.add(loss);
//   }
//   Metrics metrics = report.metrics();      // train/loss, train/pg_loss, ... of the whole step
//
// Per token, with w of the correction:
//   policy * w + kl_loss_coef * KL - entropy_coef * H

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "policy/aggregation.h"
#include "policy/policy_row.h"
#include "policy/token_losses.h"

namespace baleen::policy {

enum class RatioKind {
  kToken,          // ratio, grpo, dapo, ppo: exp(l - l_old) of the token
  kSequence,       // gspo: exp of the row's mean log-ratio; the gradient moves the whole row
  kSequenceToken,  // gspo_token: that value, the gradient through the own token only
  kCispo,          // stop_gradient(clip(ratio)) * A * l
  kNone,           // -A * l
};
/// token, sequence, sequence_token, cispo, none.
const char* ratio_kind_name(RatioKind kind);
std::optional<RatioKind> parse_ratio_kind(std::string_view name);

enum class OnNonfinite { kAbort, kSkipSample };  // abort, skip_sample

struct PolicyLossConfig {
  RatioKind ratio = RatioKind::kToken;
  AggregationConfig aggregation;
  double eps_clip = 0.2;
  std::optional<double> eps_clip_high;  // absent: eps_clip
  std::optional<double> eps_clip_c;     // dual clip, above 1
  double cispo_eps_low = 1.0;           // 1: no lower bound
  double cispo_eps_high = 1.0;
  double kl_loss_coef = 0.0;
  KlType kl_loss_type = KlType::kK1;
  bool use_unbiased_kl = false;
  double entropy_coef = 0.0;
  bool use_opsm = false;  // sequence mask of off-policy negatives; needs rollout_logprobs
  double opsm_delta = 1e-4;
  OnNonfinite on_nonfinite = OnNonfinite::kAbort;

  ClipRange clip_range() const;
  void validate() const;  // throws ConfigError
};

/// One row's part of the step. All sums carry the step's denominators already.
struct RowLoss {
  int64_t sample = 0;
  int32_t segment = 0;
  double loss = 0.0;
  double pg_loss = 0.0;
  double kl_loss = 0.0;       // before its coefficient
  double entropy_loss = 0.0;  // mean entropy, before its coefficient and sign
  double pg_clipfrac = 0.0;
  double ppo_kl = 0.0;  // mean of l_old - l
  double opsm_clipfrac = 0.0;
  bool skipped = false;  // a log-probability was not finite (on_nonfinite = skip_sample)
  std::vector<double> token_losses;  // before denominators and mask of the loss; 0 where masked
  std::vector<double> d_logprobs;    // dLoss/dl per response token; 0 where masked
  std::vector<double> d_entropy;     // dLoss/dH; empty where entropy_coef is 0
};

struct PolicyLoss {
  std::vector<RowLoss> rows;  // in the order of the input
  double loss() const;        // this part's share of the step's loss, in order of sample
};

/// Throws Error naming sample, position, token, log-probabilities and versions when an unmasked
/// log-probability is not finite (kAbort), and naming the sample when a needed array is missing.
PolicyLoss policy_loss(std::span<const PolicyRow> rows,
                       const PolicyLossConfig& config,
                       const StepTotals& totals);

/// Collects the parts of one step, from any number of micro-batches and ranks, in any order.
class LossReport {
 public:
  void add(const PolicyLoss& part);
  void add(const RowLoss& row);  // arrays are not kept
  /// train/loss, pg_loss, kl_loss, entropy_loss, pg_clipfrac, ppo_kl, opsm_clipfrac; summed by
  /// ascending sample, so the same bits for every packing.
  Metrics metrics() const;
  int64_t skipped_samples() const;

 private:
  std::vector<RowLoss> sorted() const;
  std::vector<RowLoss> rows_;
};

}  // namespace baleen::policy
