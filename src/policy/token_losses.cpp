#include "policy/token_losses.h"

#include <algorithm>
#include <cmath>

namespace baleen::policy {
namespace {

constexpr double kLogRatioBound = 20.0;
constexpr double kLowVarBound = 10.0;

}  // namespace

Ratio clamped_ratio(double log_ratio) {
  const double value = std::exp(std::clamp(log_ratio, -kLogRatioBound, kLogRatioBound));
  return {value, std::abs(log_ratio) <= kLogRatioBound ? value : 0.0};
}

SurrogateTerm clipped_surrogate(double log_ratio, double advantage, const ClipRange& range) {
  const Ratio ratio = clamped_ratio(log_ratio);
  const double unclipped = -ratio.value * advantage;
  const double clipped = -std::clamp(ratio.value, 1.0 - range.low, 1.0 + range.high) * advantage;
  SurrogateTerm term;
  term.clipped = clipped > unclipped;
  term.loss = term.clipped ? clipped : unclipped;
  term.derivative = term.clipped ? 0.0 : -ratio.derivative * advantage;
  if (range.dual_clip && advantage < 0.0 && term.loss > -*range.dual_clip * advantage) {
    term.loss = -*range.dual_clip * advantage;
    term.derivative = 0.0;
  }
  return term;
}

SurrogateTerm cispo(double logprob, double log_ratio, double advantage, const ClipRange& range) {
  const double ratio = clamped_ratio(log_ratio).value;
  const double weight = std::clamp(ratio, 1.0 - range.low, 1.0 + range.high);
  return {-weight * advantage * logprob, -weight * advantage, weight != ratio};
}

SurrogateTerm score_function(double logprob, double advantage) {
  return {-advantage * logprob, -advantage, false};
}

const char* kl_type_name(KlType type) {
  switch (type) {
    case KlType::kK1:
      return "k1";
    case KlType::kK2:
      return "k2";
    case KlType::kK3:
      return "k3";
    case KlType::kLowVar:
      return "low_var_kl";
  }
  return "?";
}

std::optional<KlType> parse_kl_type(std::string_view name) {
  for (const KlType type : {KlType::kK1, KlType::kK2, KlType::kK3, KlType::kLowVar}) {
    if (name == kl_type_name(type)) {
      return type;
    }
  }
  return std::nullopt;
}

KlTerm kl_estimate(KlType type, double d) {
  switch (type) {
    case KlType::kK1:
      return {d, 1.0};
    case KlType::kK2:
      return {0.5 * d * d, d};
    case KlType::kK3:
      // expm1 keeps the value where it is small: e^-d - 1 cancels otherwise.
      return {std::expm1(-d) + d, -std::expm1(-d)};
    case KlType::kLowVar: {
      const double inner = std::clamp(d, -kLogRatioBound, kLogRatioBound);
      const double value = std::expm1(-inner) + inner;
      const bool free = inner == d && value <= kLowVarBound;
      return {std::min(value, kLowVarBound), free ? -std::expm1(-d) : 0.0};
    }
  }
  return {};
}

KlTerm unbiased_kl(KlType type, double d, double log_ratio) {
  const KlTerm plain = kl_estimate(type, d);
  const Ratio ratio = clamped_ratio(log_ratio);
  return {ratio.value * plain.value,
          ratio.value * plain.derivative + ratio.derivative * plain.value};
}

ValueTerm clipped_value(double value, double old_value, double target, double eps) {
  const double near = std::clamp(value, old_value - eps, old_value + eps);
  const double unclipped = 0.5 * (value - target) * (value - target);
  const double clipped = 0.5 * (near - target) * (near - target);
  if (clipped > unclipped) {
    return {clipped, 0.0, true};
  }
  return {unclipped, value - target, false};
}

}  // namespace baleen::policy
