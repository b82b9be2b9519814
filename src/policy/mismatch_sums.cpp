#include "policy/mismatch_sums.h"

#include <algorithm>
#include <cmath>

namespace baleen::policy {

void MismatchSums::Spread::add(double value) {
  sum += value;
  squares += value * value;
  min = std::min(min, value);
  max = std::max(max, value);
}

void MismatchSums::add(const Token& token, RowSums& row) {
  const double q = token.old_logprob - token.rollout_logprob;
  const double bounded_q = std::log(token.token_ratio);
  row.tokens += 1.0;
  row.old_logprob += token.old_logprob;
  row.rollout_logprob += token.rollout_logprob;
  row.ratio += token.token_ratio;
  row.ratio_gap += std::abs(token.token_ratio - 1.0);
  row.bounded += token.below || token.above ? 1.0 : 0.0;
  tokens += 1.0;
  kl -= q;
  k3 += std::expm1(bounded_q) - bounded_q;
  token_squares += token.token_ratio * token.token_ratio;
  ratio.add(token.level_ratio);
  weight.add(token.weight);
  below += token.below ? 1.0 : 0.0;
  above += token.above ? 1.0 : 0.0;
  if (token.kept) {
    kept_tokens += 1.0;
    kept_weight += token.weight;
  }
}

void MismatchSums::add(const RowSums& row, double sequence_ratio, double share) {
  rows += 1.0;
  sequence_squares += sequence_ratio * sequence_ratio;
  const double log_training = -row.old_logprob / row.tokens;
  const double log_rollout = -row.rollout_logprob / row.tokens;
  training_ppl += std::exp(log_training);
  rollout_ppl += std::exp(log_rollout);
  log_ppl_diff += log_rollout - log_training;
  ois += share * row.ratio;
  tis_abs += share * row.ratio_gap;
  tis_clipfrac += share * row.bounded;
}

double MismatchSums::ess_ratio() const {
  return ratio.squares > 0.0 ? ratio.sum * ratio.sum / (tokens * ratio.squares) : 1.0;
}

Metrics MismatchSums::metrics(const CorrectionConfig& config) const {
  Metrics metrics{{"train/ois", tokens > 0.0 ? ois : 1.0}, {"train/ess_ratio", ess_ratio()}};
  if (tokens == 0.0) {
    return metrics;
  }
  if (config.kind == CorrectionKind::kTis || config.kind == CorrectionKind::kIcePop) {
    metrics.emplace_back("train/tis", ois);
    metrics.emplace_back("train/tis_clipfrac", tis_clipfrac);
    metrics.emplace_back("train/tis_abs", tis_abs);
  }
  const auto put = [&](const char* name, double value) {
    metrics.emplace_back(std::string("train/mis_") + name, value);
  };
  const auto put_spread = [&](const std::string& name, const Spread& spread) {
    const double mean = spread.sum / tokens;
    put((name + "_mean").c_str(), mean);
    put((name + "_min").c_str(), spread.min);
    put((name + "_max").c_str(), spread.max);
    put((name + "_std").c_str(), std::sqrt(std::max(spread.squares / tokens - mean * mean, 0.0)));
  };
  put("training_ppl", training_ppl / rows);
  put("rollout_ppl", rollout_ppl / rows);
  put("log_ppl_diff", log_ppl_diff / rows);
  put("kl", kl / tokens);
  put("k3_kl", k3 / tokens);
  put("chi2_token", token_squares / tokens - 1.0);
  put("chi2_seq", sequence_squares / rows - 1.0);
  put_spread("ratio", ratio);
  if (config.kind != CorrectionKind::kMis) {
    return metrics;
  }
  put_spread("weight", weight);
  const std::string mode = weight_mode_name(config.mode);
  put((mode + "_fraction_low").c_str(), below / tokens);
  put((mode + "_fraction_high").c_str(), above / tokens);
  put("rs_masked_fraction", rejected / tokens);
  put("catastrophic_token_fraction", veto_tokens / tokens);
  put("catastrophic_seq_fraction", veto_rows / rows);
  put("ess", ess_ratio());
  if (config.batch_normalize) {
    put("batch_norm_factor", batch_norm_factor);
  }
  return metrics;
}

}  // namespace baleen::policy
