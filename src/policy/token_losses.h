#pragma once
// The losses of one token as pure functions: value and derivative. Everything is minimised.
// Log-ratios are clamped to +-20 before exp; outside the derivative is 0.
// Sources: PPO (clipped surrogate), DAPO (two-sided range), GSPO, CISPO, Schulman's k1-k3.
//
//   SurrogateTerm term = clipped_surrogate(l - l_old, advantage, {0.2, 0.28});
//   loss += term.loss; dl += term.derivative;

#include <optional>
#include <string_view>

namespace baleen::policy {

/// exp(clip(log_ratio, -20, 20)), and its derivative in log_ratio.
struct Ratio {
  double value = 1.0;
  double derivative = 1.0;
};
Ratio clamped_ratio(double log_ratio);

struct ClipRange {
  double low = 0.2;                 // ratio down to 1 - low
  double high = 0.2;                // ratio up to 1 + high
  std::optional<double> dual_clip;  // c > 1: where A < 0 the loss is at most -c A
};

struct SurrogateTerm {
  double loss = 0.0;
  double derivative = 0.0;  // in the log-ratio (clipped_surrogate) or in l (the others)
  bool clipped = false;     // the clipped branch was strictly larger; CISPO: ratio outside its caps
};

/// max(-r A, -clip(r, 1 - low, 1 + high) A); a tie takes the unclipped branch.
SurrogateTerm clipped_surrogate(double log_ratio, double advantage, const ClipRange& range);

/// -stop_gradient(clip(r, 1 - low, 1 + high)) * A * l; derivative in l.
SurrogateTerm cispo(double logprob, double log_ratio, double advantage, const ClipRange& range);

/// -A * l, no ratio; derivative in l. With A = 1: supervised loss.
SurrogateTerm score_function(double logprob, double advantage);

enum class KlType { kK1, kK2, kK3, kLowVar };
const char* kl_type_name(KlType type);  // k1, k2, k3, low_var_kl
std::optional<KlType> parse_kl_type(std::string_view name);

struct KlTerm {
  double value = 0.0;
  double derivative = 0.0;  // in l
};
/// Estimate of KL(policy || reference) at d = l - l_ref. low_var_kl: k3 with d clamped to +-20 and
/// the value to +-10; derivative 0 where a clamp acts.
KlTerm kl_estimate(KlType type, double d);
/// The estimate times the ratio to the policy that sampled; the gradient goes through both.
KlTerm unbiased_kl(KlType type, double d, double log_ratio);

struct ValueTerm {
  double loss = 0.0;
  double derivative = 0.0;  // in the value
  bool clipped = false;
};
/// 1/2 max((v - ret)^2, (clip(v, old - eps, old + eps) - ret)^2); a tie takes the unclipped branch.
ValueTerm clipped_value(double value, double old_value, double target, double eps);

}  // namespace baleen::policy
