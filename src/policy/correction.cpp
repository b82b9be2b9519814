#include "policy/correction.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "base/error.h"
#include "policy/mismatch_sums.h"

namespace baleen::policy {
namespace {

constexpr double kBound = 20.0;

template <class Kind, size_t count>
std::optional<Kind> parse_among(const Kind (&kinds)[count],
                                const char* (*name_of)(Kind),
                                std::string_view name) {
  for (const Kind kind : kinds) {
    if (name == name_of(kind)) {
      return kind;
    }
  }
  return std::nullopt;
}

/// log(l_old / l_roll) of a row, on trained tokens; 0 elsewhere.
struct RowRatios {
  std::vector<double> raw;      // l_old - l_roll
  std::vector<double> clamped;  // within +-20
  double tokens = 0.0;
  double sum = 0.0;  // of the clamped ones

  double at(RatioLevel level, size_t t) const {
    switch (level) {
      case RatioLevel::kToken:
        return std::exp(clamped[t]);
      case RatioLevel::kSequence:
        return std::exp(std::clamp(sum, -kBound, kBound));
      case RatioLevel::kGeometric:
        return std::exp(sum / tokens);
    }
    return 1.0;
  }
};

RowRatios ratios_of(const PolicyRow& row) {
  const size_t count = row.mask.size();
  for (const Numbers& values : {row.old_logprobs, row.rollout_logprobs}) {
    if (values.size() != count) {
      throw Error(fmt::format(
          "sample {}: the correction needs old and rollout log-probabilities of {} response "
          "tokens, got {} and {}",
          row.sample,
          count,
          row.old_logprobs.size(),
          row.rollout_logprobs.size()));
    }
  }
  RowRatios ratios;
  ratios.raw.assign(count, 0.0);
  ratios.clamped.assign(count, 0.0);
  for (size_t t = 0; t < count; ++t) {
    if (row.mask[t] == 0) {
      continue;
    }
    ratios.raw[t] = row.old_logprobs[t] - row.rollout_logprobs[t];
    if (!std::isfinite(ratios.raw[t])) {
      throw Error(fmt::format("sample {}, position {}: log-probabilities {} (old), {} (rollout)",
                              row.sample,
                              row.prompt_tokens + static_cast<int64_t>(t),
                              row.old_logprobs[t],
                              row.rollout_logprobs[t]));
    }
    ratios.clamped[t] = std::clamp(ratios.raw[t], -kBound, kBound);
    ratios.tokens += 1.0;
    ratios.sum += ratios.clamped[t];
  }
  return ratios;
}

/// The bounds that act on the weight: which of them, and what a ratio outside becomes.
struct WeightRule {
  RatioLevel level = RatioLevel::kToken;
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool zero_outside = false;

  double weight(double ratio) const {
    if (zero_outside) {
      return ratio < low || ratio > high ? 0.0 : ratio;
    }
    return std::clamp(ratio, low, high);
  }
};

WeightRule weight_rule(const CorrectionConfig& config) {
  switch (config.kind) {
    case CorrectionKind::kNone:
      return {};
    case CorrectionKind::kTis:
      return {RatioLevel::kToken, config.tis_clip_low, config.tis_clip, false};
    case CorrectionKind::kIcePop:
      return {RatioLevel::kToken, config.tis_clip_low, config.tis_clip, true};
    case CorrectionKind::kMis:
      break;
  }
  WeightRule rule{config.level, config.bounds.low(), config.bounds.upper, false};
  rule.zero_outside = config.mode == WeightMode::kMask;
  if (config.mode == WeightMode::kTruncate) {
    rule.low = -std::numeric_limits<double>::infinity();
  }
  return rule;
}

/// Rejection and veto of mis, per token.
std::vector<uint8_t> kept_tokens(const PolicyRow& row,
                                 const RowRatios& ratios,
                                 const CorrectionConfig& config,
                                 MismatchSums& sums) {
  std::vector<uint8_t> keep(row.mask.size(), 1);
  double rejected = 0.0;
  double vetoing = 0.0;
  for (size_t t = 0; t < keep.size(); ++t) {
    if (row.mask[t] == 0) {
      continue;
    }
    const double ratio = ratios.at(config.rs_level, t);
    if (config.use_rs && (ratio < config.rs_bounds.low() || ratio > config.rs_bounds.upper)) {
      keep[t] = 0;
      rejected += 1.0;
    }
    vetoing += std::exp(ratios.raw[t]) < config.rs_veto_threshold ? 1.0 : 0.0;
  }
  if (vetoing > 0.0) {
    std::fill(keep.begin(), keep.end(), uint8_t{0});
  }
  sums.rejected += rejected;
  sums.veto_tokens += vetoing;
  sums.veto_rows += vetoing > 0.0 ? 1.0 : 0.0;
  return keep;
}

}  // namespace

const char* correction_kind_name(CorrectionKind kind) {
  constexpr const char* kNames[] = {"none", "tis", "icepop", "mis"};
  return kNames[static_cast<int>(kind)];
}

std::optional<CorrectionKind> parse_correction_kind(std::string_view name) {
  constexpr CorrectionKind kKinds[] = {
      CorrectionKind::kNone, CorrectionKind::kTis, CorrectionKind::kIcePop, CorrectionKind::kMis};
  return parse_among(kKinds, correction_kind_name, name);
}

const char* ratio_level_name(RatioLevel level) {
  constexpr const char* kNames[] = {"token", "sequence", "geometric"};
  return kNames[static_cast<int>(level)];
}

std::optional<RatioLevel> parse_ratio_level(std::string_view name) {
  constexpr RatioLevel kLevels[] = {
      RatioLevel::kToken, RatioLevel::kSequence, RatioLevel::kGeometric};
  return parse_among(kLevels, ratio_level_name, name);
}

const char* weight_mode_name(WeightMode mode) {
  constexpr const char* kNames[] = {"truncate", "clip", "mask"};
  return kNames[static_cast<int>(mode)];
}

std::optional<WeightMode> parse_weight_mode(std::string_view name) {
  constexpr WeightMode kModes[] = {WeightMode::kTruncate, WeightMode::kClip, WeightMode::kMask};
  return parse_among(kModes, weight_mode_name, name);
}

void CorrectionConfig::validate() const {
  const auto ordered = [](const char* name, double low, double high) {
    if (!(low >= 0.0) || !(high > 0.0) || !(low <= high) || !std::isfinite(high)) {
      throw ConfigError(fmt::format(
          "{} must be 0 <= lower <= upper with a positive upper, not [{}, {}]", name, low, high));
    }
  };
  ordered("tis_clip", tis_clip_low, tis_clip);
  ordered("mis bounds", bounds.low(), bounds.upper);
  ordered("rs bounds", rs_bounds.low(), rs_bounds.upper);
  if (!(rs_veto_threshold >= 0.0) || rs_veto_threshold >= 1.0) {
    throw ConfigError(
        fmt::format("rs_veto_threshold must be in [0, 1), not {}", rs_veto_threshold));
  }
}

Corrections correct(std::span<const PolicyRow> rows,
                    const CorrectionConfig& config,
                    const StepTotals& totals,
                    const AggregationConfig& aggregation) {
  config.validate();
  const WeightRule rule = weight_rule(config);
  const bool weighs = config.kind != CorrectionKind::kNone;
  const bool multi_level = config.kind == CorrectionKind::kMis;
  Corrections result;
  result.rows.resize(rows.size());
  MismatchSums sums;
  const std::vector<size_t> order = summation_order(rows);
  for (const size_t i : order) {
    const PolicyRow& row = rows[i];
    const RowRatios ratios = ratios_of(row);
    if (ratios.tokens == 0.0) {
      if (weighs) {
        result.rows[i].weights.assign(row.mask.size(), 1.0);
      }
      continue;
    }
    RowCorrection& correction = result.rows[i];
    if (multi_level) {
      correction.keep = kept_tokens(row, ratios, config, sums);
    }
    std::vector<double> weights(row.mask.size(), 1.0);
    MismatchSums::RowSums of_row;
    for (size_t t = 0; t < row.mask.size(); ++t) {
      if (row.mask[t] == 0) {
        continue;
      }
      const double ratio = ratios.at(rule.level, t);
      weights[t] = rule.weight(ratio);
      sums.add({.old_logprob = row.old_logprobs[t],
                .rollout_logprob = row.rollout_logprobs[t],
                .token_ratio = std::exp(ratios.clamped[t]),
                .level_ratio = ratio,
                .weight = weights[t],
                .below = ratio<rule.low, .above = ratio> rule.high,
                .kept = correction.keep.empty() || correction.keep[t] != 0},
               of_row);
    }
    sums.add(of_row,
             ratios.at(RatioLevel::kSequence, 0),
             metric_scale(totals, aggregation, row.rollout));
    if (weighs) {
      correction.weights = std::move(weights);
    }
  }
  const double mean_weight = sums.kept_tokens > 0.0 ? sums.kept_weight / sums.kept_tokens : 1.0;
  if (multi_level && config.batch_normalize && mean_weight > 0.0) {
    sums.batch_norm_factor = mean_weight;
    for (size_t i = 0; i < rows.size(); ++i) {
      for (size_t t = 0; t < rows[i].mask.size(); ++t) {
        result.rows[i].weights[t] /= rows[i].mask[t] != 0 ? mean_weight : 1.0;
      }
    }
  }
  result.ess_ratio = sums.ess_ratio();
  result.metrics = sums.metrics(config);
  return result;
}

EssGuard::Verdict EssGuard::observe(double ess_ratio) {
  low_steps_ = ess_ratio < min_ess_ ? low_steps_ + 1 : 0;
  if (low_steps_ >= 3) {
    return Verdict::kStop;
  }
  return ess_ratio < 0.5 ? Verdict::kWarn : Verdict::kFine;
}

}  // namespace baleen::policy
