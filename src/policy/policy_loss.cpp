#include "policy/policy_loss.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace baleen::policy {
namespace {

constexpr RatioKind kRatioKinds[] = {RatioKind::kToken,
                                     RatioKind::kSequence,
                                     RatioKind::kSequenceToken,
                                     RatioKind::kCispo,
                                     RatioKind::kNone};

bool sequence_kind(RatioKind kind) {
  return kind == RatioKind::kSequence || kind == RatioKind::kSequenceToken;
}

/// One row with its absent arrays resolved.
class RowReader {
 public:
  RowReader(const PolicyRow& row, const PolicyLossConfig& config) : row_(row) {
    need(row.logprobs, "logprobs", true);
    need(row.advantages, "advantages", true);
    need(row.old_logprobs, "old_logprobs", false);
    need(row.rollout_logprobs, "rollout_logprobs", config.use_opsm);
    need(row.ref_logprobs, "ref_logprobs", config.kl_loss_coef != 0.0);
    need(row.entropy, "entropy", config.entropy_coef != 0.0);
    need(row.weights, "weights", false);
    if (!row.keep.empty() && row.keep.size() != row.mask.size()) {
      wrong_length("keep", row.keep.size());
    }
  }

  size_t count() const { return row_.mask.size(); }
  bool trained(size_t t) const { return row_.mask[t] != 0; }
  bool kept(size_t t) const { return trained(t) && (row_.keep.empty() || row_.keep[t] != 0); }
  double logprob(size_t t) const { return row_.logprobs[t]; }
  double old(size_t t) const {
    return row_.old_logprobs.empty() ? row_.logprobs[t] : row_.old_logprobs[t];
  }
  double log_ratio(size_t t) const { return logprob(t) - old(t); }
  double weight(size_t t) const { return row_.weights.empty() ? 1.0 : row_.weights[t]; }

  /// The first unmasked response token with a value that is not finite.
  std::optional<size_t> nonfinite() const {
    for (size_t t = 0; t < count(); ++t) {
      if (!trained(t)) {
        continue;
      }
      bool finite = std::isfinite(weight(t));
      for (const Numbers& values : {row_.logprobs,
                                    row_.old_logprobs,
                                    row_.rollout_logprobs,
                                    row_.ref_logprobs,
                                    row_.entropy,
                                    row_.advantages}) {
        finite = finite && (values.empty() || std::isfinite(values[t]));
      }
      if (!finite) {
        return t;
      }
    }
    return std::nullopt;
  }

  std::string describe(size_t t) const {
    const auto text = [&](const Numbers& values) {
      return values.empty() ? std::string("absent") : fmt::format("{}", values[t]);
    };
    return fmt::format(
        "sample {}, position {} (response token {}), token id {}: a value is not finite: "
        "log-probability {} (trained), {} (old), {} (rollout), {} (reference), entropy {}, "
        "advantage {}, correction weight {}; weight versions {}",
        row_.sample,
        row_.prompt_tokens + static_cast<int64_t>(t),
        t,
        row_.tokens.empty() ? std::string("unknown") : fmt::format("{}", row_.tokens[t]),
        text(row_.logprobs),
        text(row_.old_logprobs),
        text(row_.rollout_logprobs),
        text(row_.ref_logprobs),
        text(row_.entropy),
        text(row_.advantages),
        text(row_.weights),
        row_.versions.empty() ? "unknown" : row_.versions);
  }

 private:
  void need(const Numbers& values, const char* name, bool required) const {
    if (values.size() != row_.mask.size() && (required || !values.empty())) {
      wrong_length(name, values.size());
    }
  }
  [[noreturn]] void wrong_length(const char* name, size_t length) const {
    throw Error(fmt::format(
        "sample {}: {} has {} entries, the mask {}", row_.sample, name, length, row_.mask.size()));
  }

  const PolicyRow& row_;
};

double mean_log_ratio(const RowReader& reader, double tokens) {
  double sum = 0.0;
  for (size_t t = 0; t < reader.count(); ++t) {
    sum += reader.trained(t) ? reader.log_ratio(t) : 0.0;
  }
  return tokens > 0.0 ? sum / tokens : 0.0;
}

/// Negative advantage and a policy that has left the one that sampled.
bool opsm_masks(const PolicyRow& row, const RowReader& reader, double tokens, double delta) {
  double advantage = 0.0;
  double gap = 0.0;
  for (size_t t = 0; t < reader.count(); ++t) {
    if (reader.trained(t)) {
      advantage += row.advantages[t];
      gap += row.rollout_logprobs[t] - row.logprobs[t];
    }
  }
  return advantage < 0.0 && gap / tokens > delta;
}

SurrogateTerm policy_term(const RowReader& reader,
                          size_t t,
                          double advantage,
                          double sequence_log_ratio,
                          const PolicyLossConfig& config) {
  switch (config.ratio) {
    case RatioKind::kToken:
      return clipped_surrogate(reader.log_ratio(t), advantage, config.clip_range());
    case RatioKind::kSequence:
    case RatioKind::kSequenceToken:
      return clipped_surrogate(sequence_log_ratio, advantage, config.clip_range());
    case RatioKind::kCispo:
      return cispo(reader.logprob(t), reader.log_ratio(t), advantage, config.clip_range());
    case RatioKind::kNone:
      return score_function(reader.logprob(t), advantage);
  }
  return {};
}

/// Adds the KL and entropy terms of token t to `result`; returns their part of the token's loss.
double side_terms(const PolicyRow& row,
                  const RowReader& reader,
                  size_t t,
                  double scale,
                  const PolicyLossConfig& config,
                  RowLoss& result) {
  double loss = 0.0;
  if (!row.ref_logprobs.empty()) {
    const double d = reader.logprob(t) - row.ref_logprobs[t];
    const KlTerm kl = config.use_unbiased_kl
                          ? unbiased_kl(config.kl_loss_type, d, reader.log_ratio(t))
                          : kl_estimate(config.kl_loss_type, d);
    result.kl_loss += scale * kl.value;
    if (config.kl_loss_coef != 0.0) {
      loss += config.kl_loss_coef * kl.value;
      result.d_logprobs[t] += scale * config.kl_loss_coef * kl.derivative;
    }
  }
  if (!row.entropy.empty()) {
    result.entropy_loss += scale * row.entropy[t];
    if (config.entropy_coef != 0.0) {
      loss -= config.entropy_coef * row.entropy[t];
      result.d_entropy[t] = -scale * config.entropy_coef;
    }
  }
  return loss;
}

RowLoss row_loss(const PolicyRow& row, const PolicyLossConfig& config, const StepTotals& totals) {
  const RowReader reader(row, config);
  RowLoss result;
  result.sample = row.sample;
  result.segment = row.segment;
  result.token_losses.assign(reader.count(), 0.0);
  result.d_logprobs.assign(reader.count(), 0.0);
  if (config.entropy_coef != 0.0) {
    result.d_entropy.assign(reader.count(), 0.0);
  }
  if (const std::optional<size_t> bad = reader.nonfinite()) {
    if (config.on_nonfinite == OnNonfinite::kAbort) {
      throw Error(reader.describe(*bad));
    }
    result.skipped = true;
    return result;
  }
  const auto tokens = static_cast<double>(trained_tokens(row.mask));
  if (tokens == 0.0) {
    return result;
  }
  const double scale = row_scale(totals, config.aggregation, row.rollout);
  const double share = metric_scale(totals, config.aggregation, row.rollout);
  const double sequence = sequence_kind(config.ratio) ? mean_log_ratio(reader, tokens) : 0.0;
  const bool masked = config.use_opsm && opsm_masks(row, reader, tokens, config.opsm_delta);
  double sequence_derivative = 0.0;
  for (size_t t = 0; t < reader.count(); ++t) {
    if (!reader.trained(t)) {
      continue;
    }
    result.ppo_kl -= share * reader.log_ratio(t);
    result.opsm_clipfrac += masked ? share : 0.0;
    if (!reader.kept(t)) {
      continue;
    }
    double loss = 0.0;
    if (!masked) {
      const SurrogateTerm term = policy_term(reader, t, row.advantages[t], sequence, config);
      loss = reader.weight(t) * term.loss;
      result.pg_loss += scale * loss;
      result.pg_clipfrac += term.clipped ? share : 0.0;
      const double derivative = scale * reader.weight(t) * term.derivative;
      if (config.ratio == RatioKind::kSequence) {
        sequence_derivative += derivative;
      } else {
        result.d_logprobs[t] += derivative;
      }
    }
    loss += side_terms(row, reader, t, scale, config, result);
    result.token_losses[t] = loss;
    result.loss += scale * loss;
  }
  if (config.ratio == RatioKind::kSequence) {
    for (size_t t = 0; t < reader.count(); ++t) {
      if (reader.trained(t)) {
        result.d_logprobs[t] += sequence_derivative / tokens;
      }
    }
  }
  return result;
}

}  // namespace

const char* ratio_kind_name(RatioKind kind) {
  switch (kind) {
    case RatioKind::kToken:
      return "token";
    case RatioKind::kSequence:
      return "sequence";
    case RatioKind::kSequenceToken:
      return "sequence_token";
    case RatioKind::kCispo:
      return "cispo";
    case RatioKind::kNone:
      return "none";
  }
  return "?";
}

std::optional<RatioKind> parse_ratio_kind(std::string_view name) {
  for (const RatioKind kind : kRatioKinds) {
    if (name == ratio_kind_name(kind)) {
      return kind;
    }
  }
  return std::nullopt;
}

ClipRange PolicyLossConfig::clip_range() const {
  if (ratio == RatioKind::kCispo) {
    return {cispo_eps_low, cispo_eps_high, std::nullopt};
  }
  return {eps_clip, eps_clip_high.value_or(eps_clip), eps_clip_c};
}

void PolicyLossConfig::validate() const {
  aggregation.validate();
  const auto at_least_zero = [](const char* name, double value) {
    if (!(value >= 0.0) || !std::isfinite(value)) {
      throw ConfigError(fmt::format("{} must be a number of at least 0, not {}", name, value));
    }
  };
  at_least_zero("eps_clip", eps_clip);
  at_least_zero("eps_clip_high", eps_clip_high.value_or(eps_clip));
  at_least_zero("cispo_eps_low", cispo_eps_low);
  at_least_zero("cispo_eps_high", cispo_eps_high);
  at_least_zero("kl_loss_coef", kl_loss_coef);
  at_least_zero("opsm_delta", opsm_delta);
  if (eps_clip > 1.0 || cispo_eps_low > 1.0) {
    throw ConfigError(
        fmt::format("eps_clip {} and cispo_eps_low {} must be at most 1", eps_clip, cispo_eps_low));
  }
  if (eps_clip_c && !(*eps_clip_c > 1.0)) {
    throw ConfigError(fmt::format("eps_clip_c must be above 1, not {}", *eps_clip_c));
  }
  if (!std::isfinite(entropy_coef)) {
    throw ConfigError(fmt::format("entropy_coef must be a number, not {}", entropy_coef));
  }
}

double PolicyLoss::loss() const {
  LossReport report;
  report.add(*this);
  return metric(report.metrics(), "train/loss");
}

PolicyLoss policy_loss(std::span<const PolicyRow> rows,
                       const PolicyLossConfig& config,
                       const StepTotals& totals) {
  PolicyLoss result;
  result.rows.reserve(rows.size());
  for (const PolicyRow& row : rows) {
    result.rows.push_back(row_loss(row, config, totals));
  }
  return result;
}

void LossReport::add(const PolicyLoss& part) {
  for (const RowLoss& row : part.rows) {
    add(row);
  }
}

void LossReport::add(const RowLoss& row) {
  rows_.push_back(row);
  rows_.back().token_losses.clear();
  rows_.back().d_logprobs.clear();
  rows_.back().d_entropy.clear();
}

std::vector<RowLoss> LossReport::sorted() const {
  std::vector<RowLoss> rows = rows_;
  std::sort(rows.begin(), rows.end(), [](const RowLoss& a, const RowLoss& b) {
    return std::pair(a.sample, a.segment) < std::pair(b.sample, b.segment);
  });
  return rows;
}

Metrics LossReport::metrics() const {
  const std::vector<RowLoss> rows = sorted();
  const auto sum = [&](double RowLoss::* part) {
    double total = 0.0;
    for (const RowLoss& row : rows) {
      total += row.*part;
    }
    return total;
  };
  return {{"train/loss", sum(&RowLoss::loss)},
          {"train/pg_loss", sum(&RowLoss::pg_loss)},
          {"train/kl_loss", sum(&RowLoss::kl_loss)},
          {"train/entropy_loss", sum(&RowLoss::entropy_loss)},
          {"train/pg_clipfrac", sum(&RowLoss::pg_clipfrac)},
          {"train/ppo_kl", sum(&RowLoss::ppo_kl)},
          {"train/opsm_clipfrac", sum(&RowLoss::opsm_clipfrac)}};
}

int64_t LossReport::skipped_samples() const {
  return std::count_if(rows_.begin(), rows_.end(), [](const RowLoss& row) { return row.skipped; });
}

}  // namespace baleen::policy
