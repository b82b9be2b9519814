// Whole-step losses: aggregation goldens, GSPO, packing, finite differences of every loss.

#include "policy/policy_loss.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/error.h"
#include "policy/advantages.h"
#include "policy/policy_rows_for_tests.h"

namespace baleen::policy {
namespace {

double loss_of(const std::vector<OwnedRow>& rows, const PolicyLossConfig& config) {
  const std::vector<PolicyRow> seen = views(rows);
  return policy_loss(seen, config, step_totals(seen)).loss();
}

/// Rows whose token losses are the given numbers: -A l with l = -1.
std::vector<OwnedRow> rows_of_losses(const std::vector<std::vector<double>>& losses) {
  std::vector<OwnedRow> rows;
  for (const auto& tokens : losses) {
    OwnedRow row;
    row.sample = static_cast<int64_t>(rows.size());
    row.mask.assign(tokens.size(), 1);
    row.logprobs.assign(tokens.size(), -1.0);
    row.advantages = tokens;
    rows.push_back(row);
  }
  return rows;
}

PolicyLossConfig score_config(LossAgg agg) {
  PolicyLossConfig config;
  config.ratio = RatioKind::kNone;
  config.aggregation.agg = agg;
  config.aggregation.constant_length = 8.0;
  return config;
}

TEST(AggregationTest, GivesTheListedValues) {
  const auto rows = rows_of_losses({{0.2, 0.4}, {1, 2, 3, 6}});
  EXPECT_NEAR(loss_of(rows, score_config(LossAgg::kSampleMean)), 1.65, 1e-12);
  EXPECT_NEAR(loss_of(rows, score_config(LossAgg::kTokenMean)), 2.1, 1e-12);
  EXPECT_NEAR(loss_of(rows, score_config(LossAgg::kConst)), 0.7875, 1e-12);
  AggregationConfig none = score_config(LossAgg::kConst).aggregation;
  none.constant_length = 0.0;
  EXPECT_THROW(none.validate(), ConfigError);
}

TEST(AggregationTest, EmptySamplesCountUnlessToldOtherwise) {
  auto rows = rows_of_losses({{0.2, 0.4}, {5.0}});
  rows[1].mask = {0};
  PolicyLossConfig config = score_config(LossAgg::kSampleMean);
  EXPECT_NEAR(loss_of(rows, config), 0.15, 1e-12);
  config.aggregation.count_empty_samples = false;
  EXPECT_NEAR(loss_of(rows, config), 0.3, 1e-12);
  rows[0].mask = {0, 0};
  EXPECT_EQ(loss_of(rows, config), 0.0);
  EXPECT_EQ(loss_of(rows, score_config(LossAgg::kTokenMean)), 0.0);
}

TEST(AggregationTest, RowsOfOneRolloutShareOneDenominator) {
  // The second sample of the golden, split after its first token.
  auto rows = rows_of_losses({{0.2, 0.4}, {1}, {2, 3, 6}});
  rows[2].sample = rows[1].sample;
  rows[2].segment = 1;
  EXPECT_NEAR(loss_of(rows, score_config(LossAgg::kSampleMean)), 1.65, 1e-12);
  EXPECT_NEAR(loss_of(rows, score_config(LossAgg::kConst)), 0.7875, 1e-12);
  rows[2].segment = 0;
  const auto seen = views(rows);
  EXPECT_THROW(summation_order(seen), Error);
}

TEST(PolicyLossTest, SequenceRatioGivesTheListedValues) {
  OwnedRow row;
  row.mask = {1, 1, 1};
  row.old_logprobs = {-1.0, -1.0, -1.0};
  row.logprobs = {-0.9, -1.2, -0.6};
  row.advantages = {1, 1, 1};
  PolicyLossConfig config;
  config.eps_clip = 3e-4;
  config.eps_clip_high = 4e-4;
  for (const RatioKind kind : {RatioKind::kSequence, RatioKind::kSequenceToken}) {
    config.ratio = kind;
    EXPECT_NEAR(loss_of({row}, config), -1.0004, 1e-9);
  }
  // Negative advantage: unclipped, s = e^0.1 for every token.
  row.advantages = {-1, -1, -1};
  const std::vector<OwnedRow> rows = {row};
  const auto seen = views(rows);
  for (const RatioKind kind : {RatioKind::kSequence, RatioKind::kSequenceToken}) {
    config.ratio = kind;
    const PolicyLoss loss = policy_loss(seen, config, step_totals(seen));
    EXPECT_NEAR(loss.loss(), 1.105170918, 1e-9);
    for (const double d : loss.rows[0].d_logprobs) {
      EXPECT_NEAR(d, 1.105170918 / 3.0, 1e-9);
    }
  }
}

/// A batch that touches every term: masks, rejected tokens, weights, a split rollout.
std::vector<OwnedRow> mixed_rows(const std::vector<int>& codes) {
  size_t at = 0;
  const auto number = [&](double low, double high) {
    const double share = (codes[at++ % codes.size()] % 99991 + 0.5) / 99991.0;
    return low + (high - low) * share;
  };
  std::vector<OwnedRow> rows(5);
  for (size_t i = 0; i < rows.size(); ++i) {
    OwnedRow& row = rows[i];
    row.sample = static_cast<int64_t>(i == 4 ? 3 : i);
    row.segment = i == 4 ? 1 : 0;
    const double advantage = number(-2.0, 2.0);
    for (size_t t = 0; t < 2 + i; ++t) {
      row.mask.push_back(t == 1 && i > 1 ? 0 : 1);
      row.logprobs.push_back(number(-3.0, -0.1));
      row.old_logprobs.push_back(row.logprobs.back() + number(-0.6, 0.6));
      row.rollout_logprobs.push_back(row.logprobs.back() + number(-0.6, 0.6));
      row.ref_logprobs.push_back(row.logprobs.back() + number(-0.8, 0.8));
      row.entropy.push_back(number(0.1, 2.0));
      row.advantages.push_back(advantage);
      row.weights.push_back(number(0.2, 2.0));
      row.keep.push_back(t == 3 ? 0 : 1);
    }
  }
  return rows;
}

/// Distance of the row's ratios from the edges of their clip range.
bool near_kink(const OwnedRow& row, const PolicyLossConfig& config) {
  const ClipRange range = config.clip_range();
  const double edges[] = {std::log(std::max(1.0 - range.low, 1e-9)), std::log(1.0 + range.high)};
  double sum = 0.0;
  double count = 0.0;
  for (size_t t = 0; t < row.mask.size(); ++t) {
    if (row.mask[t] == 0) {
      continue;
    }
    const double x = row.logprobs[t] - row.old_logprobs[t];
    sum += x;
    count += 1.0;
    for (const double edge : edges) {
      if (std::abs(x - edge) < 1e-3) {
        return true;
      }
    }
  }
  for (const double edge : edges) {
    if (std::abs(sum / count - edge) < 1e-3) {
      return true;
    }
  }
  return false;
}

std::vector<PolicyLossConfig> every_loss() {
  std::vector<PolicyLossConfig> configs;
  for (const RatioKind ratio :
       {RatioKind::kToken, RatioKind::kSequence, RatioKind::kCispo, RatioKind::kNone}) {
    for (const LossAgg agg : {LossAgg::kSampleMean, LossAgg::kTokenMean, LossAgg::kConst}) {
      PolicyLossConfig config;
      config.ratio = ratio;
      config.aggregation = {agg, 9.0, true};
      config.eps_clip_high = 0.28;
      configs.push_back(config);
      config.entropy_coef = 0.3;
      config.kl_loss_coef = 0.7;
      for (const KlType type : {KlType::kK1, KlType::kK2, KlType::kK3, KlType::kLowVar}) {
        config.kl_loss_type = type;
        config.use_unbiased_kl = false;
        configs.push_back(config);
        config.use_unbiased_kl = true;
        configs.push_back(config);
      }
    }
  }
  return configs;
}

/// The first batch of a fixed series that no loss has a kink near.
std::vector<OwnedRow> rows_off_the_kinks() {
  uint32_t state = 1;
  while (true) {
    std::vector<int> codes;
    for (int i = 0; i < 211; ++i) {
      state = state * 1664525U + 1013904223U;
      codes.push_back(static_cast<int>(state >> 8));
    }
    const std::vector<OwnedRow> rows = mixed_rows(codes);
    const auto configs = every_loss();
    const bool smooth = std::all_of(rows.begin(), rows.end(), [&](const OwnedRow& row) {
      return std::none_of(configs.begin(), configs.end(), [&](const PolicyLossConfig& config) {
        return near_kink(row, config);
      });
    });
    if (smooth) {
      return rows;
    }
  }
}

/// The loss as a function of l alone. What the formula holds still (CISPO's weight) must be held
/// here too: its l enters the ratio only through l - l_old, so moving l_old with l does that.
double moved_loss(
    std::vector<OwnedRow> rows, size_t i, size_t t, double step, const PolicyLossConfig& config) {
  rows[i].logprobs[t] += step;
  if (config.ratio == RatioKind::kCispo) {
    rows[i].old_logprobs[t] += step;
  }
  return loss_of(rows, config);
}

TEST(PolicyLossGradientTest, EveryLossHasTheSlopeItClaims) {
  std::vector<OwnedRow> rows = rows_off_the_kinks();
  int checked = 0;
  for (const PolicyLossConfig& config : every_loss()) {
    if (config.ratio == RatioKind::kCispo && config.use_unbiased_kl) {
      continue;  // the unbiased estimate's ratio moves with l: covered by the token ratio
    }
    const auto seen = views(rows);
    const PolicyLoss loss = policy_loss(seen, config, step_totals(seen));
    for (size_t i = 0; i < rows.size(); ++i) {
      for (size_t t = 0; t < rows[i].mask.size(); ++t) {
        const double step = 1e-5;
        const double slope =
            (moved_loss(rows, i, t, step, config) - moved_loss(rows, i, t, -step, config)) /
            (2.0 * step);
        EXPECT_NEAR(loss.rows[i].d_logprobs[t], slope, 1e-7);
        ++checked;
        if (config.entropy_coef != 0.0) {
          auto up = rows;
          up[i].entropy[t] += 0.5;
          EXPECT_NEAR(loss.rows[i].d_entropy[t] * 0.5, loss_of(up, config) - loss.loss(), 1e-12);
        }
      }
    }
  }
  EXPECT_GT(checked, 1000);
}

TEST(PolicyLossGradientTest, TokenVariantOfGspoMovesItsOwnTokenOnly) {
  const std::vector<int> codes = {50021, 71, 9973, 88001, 30011, 64007, 1009, 77003, 23011, 41017};
  auto rows = mixed_rows(codes);
  PolicyLossConfig config;
  config.ratio = RatioKind::kSequenceToken;
  config.eps_clip = 0.9;  // nothing is clipped
  config.eps_clip_high = 9.0;
  const auto seen = views(rows);
  const StepTotals totals = step_totals(seen);
  const PolicyLoss loss = policy_loss(seen, config, totals);
  for (size_t i = 0; i < rows.size(); ++i) {
    double sum = 0.0;
    double count = 0.0;
    for (size_t t = 0; t < rows[i].mask.size(); ++t) {
      sum += rows[i].mask[t] != 0 ? rows[i].logprobs[t] - rows[i].old_logprobs[t] : 0.0;
      count += rows[i].mask[t];
    }
    const double scale = row_scale(totals, config.aggregation, seen[i].rollout);
    for (size_t t = 0; t < rows[i].mask.size(); ++t) {
      const bool counts = rows[i].mask[t] != 0 && rows[i].keep[t] != 0;
      const double expected =
          counts ? -scale * rows[i].weights[t] * std::exp(sum / count) * rows[i].advantages[t]
                 : 0.0;
      EXPECT_NEAR(loss.rows[i].d_logprobs[t], expected, 1e-12);
    }
  }
}

TEST(PolicyLossTest, CorrectionWeightsTouchThePolicyTermAlone) {
  OwnedRow row;
  row.mask = {1, 1};
  row.logprobs = {-1.0, -0.5};
  row.ref_logprobs = {-1.3, -0.9};
  row.entropy = {0.4, 0.8};
  row.advantages = {1.0, 1.0};
  PolicyLossConfig config;
  config.kl_loss_coef = 0.5;
  config.entropy_coef = 0.25;
  const double plain_kl = 0.5 * (0.3 + 0.4) / 2;
  const double plain_entropy = 0.25 * 0.6;
  EXPECT_NEAR(loss_of({row}, config), -1.0 + plain_kl - plain_entropy, 1e-12);
  row.weights = {0.0, 0.5};
  EXPECT_NEAR(loss_of({row}, config), -0.25 + plain_kl - plain_entropy, 1e-12);
  // A rejected token drops every term; the denominator stays.
  row.keep = {1, 0};
  EXPECT_NEAR(loss_of({row}, config), (0.5 * 0.3 - 0.25 * 0.4) / 2, 1e-12);
}

TEST(PolicyLossTest, StaleNegativesAreMaskedWhole) {
  OwnedRow row;
  row.mask = {1, 1};
  row.logprobs = {-2.0, -1.0};
  row.old_logprobs = row.logprobs;
  row.rollout_logprobs = {-1.9, -0.9};  // mean gap 0.1
  row.advantages = {-1.0, -1.0};
  PolicyLossConfig config;
  config.use_opsm = true;
  config.opsm_delta = 0.05;
  const std::vector<OwnedRow> rows = {row};
  const auto seen = views(rows);
  const PolicyLoss masked = policy_loss(seen, config, step_totals(seen));
  EXPECT_EQ(masked.loss(), 0.0);
  EXPECT_EQ(masked.rows[0].opsm_clipfrac, 1.0);
  EXPECT_THAT(masked.rows[0].d_logprobs, testing::Each(0.0));
  config.opsm_delta = 0.2;
  EXPECT_NEAR(loss_of({row}, config), 1.0, 1e-12);
  config.opsm_delta = 0.05;
  row.advantages = {1.0, 1.0};
  EXPECT_NEAR(loss_of({row}, config), -1.0, 1e-12);
  row.rollout_logprobs.clear();
  EXPECT_THROW(loss_of({row}, config), Error);
}

TEST(PolicyLossTest, ValuesThatAreNotFiniteStopTheStepOrSkipTheSample) {
  OwnedRow good;
  good.sample = 3;
  good.mask = {1};
  good.logprobs = {-1.0};
  good.advantages = {1.0};
  OwnedRow bad;
  bad.sample = 17;
  bad.mask = {0, 1};
  bad.logprobs = {std::numeric_limits<double>::quiet_NaN(),
                  -std::numeric_limits<double>::infinity()};
  bad.advantages = {1.0, 1.0};
  PolicyRow seen[] = {good.view(), bad.view()};
  const int32_t tokens[] = {8, 4242};
  seen[1].tokens = tokens;
  seen[1].prompt_tokens = 30;
  seen[1].versions = "5x1,6x1";
  PolicyLossConfig config;
  const StepTotals totals = step_totals(seen);
  try {
    policy_loss(seen, config, totals);
    FAIL() << "a value that is not finite went through";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("sample 17, position 31"));
    EXPECT_THAT(error.what(), testing::HasSubstr("4242"));
    EXPECT_THAT(error.what(), testing::HasSubstr("5x1,6x1"));
  }
  config.on_nonfinite = OnNonfinite::kSkipSample;
  LossReport report;
  const PolicyLoss loss = policy_loss(seen, config, totals);
  report.add(loss);
  EXPECT_EQ(report.skipped_samples(), 1);
  EXPECT_EQ(metric(report.metrics(), "train/loss"), -0.5);
  EXPECT_THAT(loss.rows[1].d_logprobs, testing::Each(0.0));
  // A masked token may hold anything.
  bad.logprobs[1] = -1.0;
  EXPECT_EQ(loss_of({bad}, config), -1.0);
}

RC_GTEST_PROP(PolicyLossPropertyTest, AnySplitAndOrderGivesTheSameBits, ()) {
  const auto codes = *rc::gen::container<std::vector<int>>(60, rc::gen::inRange(0, 99991));
  std::vector<OwnedRow> rows = mixed_rows(codes);
  PolicyLossConfig config;
  config.aggregation.agg =
      *rc::gen::element(LossAgg::kSampleMean, LossAgg::kTokenMean, LossAgg::kConst);
  config.aggregation.constant_length = 7.0;
  config.ratio = *rc::gen::element(RatioKind::kToken,
                                   RatioKind::kSequence,
                                   RatioKind::kSequenceToken,
                                   RatioKind::kCispo,
                                   RatioKind::kNone);
  config.kl_loss_coef = 0.1;
  config.entropy_coef = 0.01;
  const auto seen = views(rows);
  const StepTotals totals = step_totals(seen);
  LossReport whole;
  const PolicyLoss together = policy_loss(seen, config, totals);
  whole.add(together);
  const size_t cut = static_cast<size_t>(*rc::gen::inRange(0, 6));
  LossReport split;
  const std::span<const PolicyRow> all(seen);
  const PolicyLoss tail = policy_loss(all.subspan(cut), config, totals);
  split.add(tail);
  split.add(policy_loss(all.subspan(0, cut), config, totals));
  RC_ASSERT(whole.metrics() == split.metrics());
  for (size_t i = cut; i < rows.size(); ++i) {
    RC_ASSERT(tail.rows[i - cut].d_logprobs == together.rows[i].d_logprobs);
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t t = 0; t < rows[i].mask.size(); ++t) {
      if (rows[i].mask[t] == 0) {
        RC_ASSERT(together.rows[i].d_logprobs[t] == 0.0);
      }
    }
  }
  // float32 log-probabilities read the same as their doubles.
  OwnedRow rounded = rows[0];
  std::vector<float> narrow(rounded.logprobs.begin(), rounded.logprobs.end());
  rounded.logprobs.assign(narrow.begin(), narrow.end());
  PolicyRow as_float = rounded.view();
  as_float.logprobs = Numbers(narrow);
  const PolicyRow as_double = rounded.view();
  RC_ASSERT(policy_loss(std::span(&as_float, 1), config, totals).loss() ==
            policy_loss(std::span(&as_double, 1), config, totals).loss());
}

}  // namespace
}  // namespace baleen::policy
