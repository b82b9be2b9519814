#include "policy/aggregation.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"

namespace baleen::policy {

double metric(const Metrics& metrics, const std::string& name) {
  const auto found = std::find_if(
      metrics.begin(), metrics.end(), [&](const auto& entry) { return entry.first == name; });
  BALEEN_CHECK(found != metrics.end(), "no metric {}", name);
  return found->second;
}

int64_t trained_tokens(std::span<const uint8_t> mask) {
  return std::count_if(mask.begin(), mask.end(), [](uint8_t m) { return m != 0; });
}

std::vector<size_t> summation_order(std::span<const PolicyRow> rows) {
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto key = [&](size_t i) { return std::pair(rows[i].sample, rows[i].segment); };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key(a) < key(b); });
  for (size_t i = 1; i < order.size(); ++i) {
    if (key(order[i - 1]) == key(order[i])) {
      throw Error(fmt::format(
          "two rows are segment {} of sample {}", rows[order[i]].segment, rows[order[i]].sample));
    }
  }
  return order;
}

const char* loss_agg_name(LossAgg agg) {
  switch (agg) {
    case LossAgg::kSampleMean:
      return "sample_mean";
    case LossAgg::kTokenMean:
      return "token_mean";
    case LossAgg::kConst:
      return "const";
  }
  return "?";
}

std::optional<LossAgg> parse_loss_agg(std::string_view name) {
  for (const LossAgg agg : {LossAgg::kSampleMean, LossAgg::kTokenMean, LossAgg::kConst}) {
    if (name == loss_agg_name(agg)) {
      return agg;
    }
  }
  return std::nullopt;
}

void AggregationConfig::validate() const {
  if (agg == LossAgg::kConst && !(constant_length > 0.0)) {
    throw ConfigError(fmt::format("loss_agg const needs rollout_max_response_len above 0, not {}",
                                  constant_length));
  }
}

void StepTotals::add(const StepTotals& other) {
  for (const auto& [rollout, tokens] : other.tokens_of_rollout) {
    tokens_of_rollout[rollout] += tokens;
  }
}

int64_t StepTotals::tokens() const {
  int64_t sum = 0;
  for (const auto& [rollout, tokens] : tokens_of_rollout) {
    sum += tokens;
  }
  return sum;
}

int64_t StepTotals::rollouts(const AggregationConfig& aggregation) const {
  const auto counts = [&](const auto& entry) {
    return aggregation.count_empty_samples || entry.second > 0;
  };
  return std::count_if(tokens_of_rollout.begin(), tokens_of_rollout.end(), counts);
}

StepTotals step_totals(std::span<const PolicyRow> rows) {
  StepTotals totals;
  for (const PolicyRow& row : rows) {
    totals.tokens_of_rollout[row.rollout] += trained_tokens(row.mask);
  }
  return totals;
}

double row_scale(const StepTotals& totals, const AggregationConfig& config, int64_t rollout) {
  const auto entry = totals.tokens_of_rollout.find(rollout);
  BALEEN_CHECK(entry != totals.tokens_of_rollout.end(), "rollout {} is not in the totals", rollout);
  const auto rollouts = static_cast<double>(std::max<int64_t>(totals.rollouts(config), 1));
  switch (config.agg) {
    case LossAgg::kSampleMean:
      return 1.0 / (rollouts * static_cast<double>(std::max<int64_t>(entry->second, 1)));
    case LossAgg::kTokenMean:
      return 1.0 / static_cast<double>(std::max<int64_t>(totals.tokens(), 1));
    case LossAgg::kConst:
      return 1.0 / (rollouts * config.constant_length);
  }
  return 0.0;
}

double metric_scale(const StepTotals& totals, const AggregationConfig& config, int64_t rollout) {
  AggregationConfig shares = config;
  if (shares.agg == LossAgg::kConst) {
    shares.agg = LossAgg::kTokenMean;
  }
  return row_scale(totals, shares, rollout);
}

}  // namespace baleen::policy
