#pragma once
// Corrects the policy loss for the difference between the policy that sampled (l_roll) and the
// trainer's anchor (l_old): truncated importance sampling, IcePop, masked multi-level importance
// sampling. Gives weights and a mask for PolicyRow; both are constants of the backward pass. Read
// over all rows of a step at once, since normalisation and ESS are of the whole step.
//
//   Corrections fix = correct(rows, config, totals, aggregation);   // before the first micro-batch
//   rows[i].weights = fix.rows[i].weights; rows[i].keep = fix.rows[i].keep;
//
// Sources: TIS (Yao et al. 2025), IcePop (Ring-1T report), multi-level masks as in verl and slime.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policy/aggregation.h"
#include "policy/policy_row.h"

namespace baleen::policy {

enum class CorrectionKind { kNone, kTis, kIcePop, kMis };  // none, tis, icepop, mis
const char* correction_kind_name(CorrectionKind kind);
std::optional<CorrectionKind> parse_correction_kind(std::string_view name);

/// What a ratio is taken over. With q = clip(l_old - l_roll, +-20) on trained tokens:
enum class RatioLevel {
  kToken,      // exp(q)
  kSequence,   // exp(clip(sum q, +-20)), broadcast
  kGeometric,  // exp(mean q), broadcast
};
const char* ratio_level_name(RatioLevel level);  // token, sequence, geometric
std::optional<RatioLevel> parse_ratio_level(std::string_view name);

enum class WeightMode {
  kTruncate,  // min(r, upper)
  kClip,      // clip(r, lower, upper)
  kMask,      // r inside [lower, upper], 0 outside
};
const char* weight_mode_name(WeightMode mode);  // truncate, clip, mask
std::optional<WeightMode> parse_weight_mode(std::string_view name);

struct RatioBounds {
  std::optional<double> lower;  // absent: 1 / upper
  double upper = 2.0;
  double low() const { return lower.value_or(1.0 / upper); }
};

struct CorrectionConfig {
  CorrectionKind kind = CorrectionKind::kNone;
  double tis_clip = 2.0;  // tis, icepop
  double tis_clip_low = 0.0;
  // The rest is mis.
  RatioLevel level = RatioLevel::kToken;
  WeightMode mode = WeightMode::kTruncate;
  RatioBounds bounds;
  bool use_rs = false;  // reject tokens whose ratio leaves rs_bounds
  RatioLevel rs_level = RatioLevel::kToken;
  RatioBounds rs_bounds;
  /// A row with a trained token of l_old - l_roll below its logarithm is masked whole; 0: off.
  double rs_veto_threshold = 1e-4;
  bool batch_normalize = false;  // divide by the mean weight of the tokens that are kept
  void validate() const;         // throws ConfigError
};

struct RowCorrection {
  std::vector<double> weights;  // per response token; 1 where masked; empty: no correction
  std::vector<uint8_t> keep;    // 0: rejected; empty: nothing is
};

struct Corrections {
  std::vector<RowCorrection> rows;
  /// train/ois, train/ess_ratio and the train/mis_* of the ratios always (kind none only measures);
  /// train/tis, tis_clipfrac, tis_abs with tis and icepop; those of weights and masks with mis.
  Metrics metrics;
  double ess_ratio = 1.0;  // (sum r)^2 / (N sum r^2), r at the weight's level before its bounds
};

/// `rows` are those of the whole step, of every rank, with old_logprobs and rollout_logprobs. Sums
/// run in ascending (sample, segment). Throws Error naming the sample.
Corrections correct(std::span<const PolicyRow> rows,
                    const CorrectionConfig& config,
                    const StepTotals& totals,
                    const AggregationConfig& aggregation);

/// Watches ess_ratio: warns below 0.5, stops after three steps in a row below `min_ess`.
class EssGuard {
 public:
  explicit EssGuard(double min_ess = 0.1) : min_ess_(min_ess) {}
  enum class Verdict { kFine, kWarn, kStop };
  Verdict observe(double ess_ratio);

 private:
  double min_ess_;
  int low_steps_ = 0;
};

}  // namespace baleen::policy
