// TIS, IcePop and MIS: listed values, every level and mode, rejection, veto, normalisation.

#include "policy/correction.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "policy/policy_loss.h"
#include "policy/policy_rows_for_tests.h"

namespace baleen::policy {
namespace {

using testing::DoubleNear;
using testing::Each;
using testing::ElementsAre;

OwnedRow listed_row() {
  OwnedRow row;
  row.mask = {1, 1, 1};
  row.old_logprobs = {-1.0, -2.0, -0.5};
  row.rollout_logprobs = {-1.2, -3.0, -0.4};
  return row;
}

Corrections corrected(const std::vector<OwnedRow>& rows, const CorrectionConfig& config) {
  const auto seen = views(rows);
  return correct(seen, config, step_totals(seen), {});
}

CorrectionConfig mis(RatioLevel level, WeightMode mode) {
  CorrectionConfig config;
  config.kind = CorrectionKind::kMis;
  config.level = level;
  config.mode = mode;
  config.bounds = {0.5, 2.0};
  return config;
}

void expect_metric(const Metrics& metrics, const char* name, double expected) {
  EXPECT_NEAR(metric(metrics, name), expected, 1e-7 * std::max(1.0, std::abs(expected))) << name;
}

TEST(CorrectionTest, TruncatedSamplingGivesTheListedValues) {
  CorrectionConfig config;
  config.kind = CorrectionKind::kTis;
  const Corrections fix = corrected({listed_row()}, config);
  EXPECT_THAT(fix.rows[0].weights,
              ElementsAre(DoubleNear(1.221402758, 1e-8), 2.0, DoubleNear(0.904837418, 1e-8)));
  EXPECT_TRUE(fix.rows[0].keep.empty());
  expect_metric(fix.metrics, "train/tis_clipfrac", 1.0 / 3.0);
  expect_metric(fix.metrics, "train/tis_abs", 0.6782823895);
  expect_metric(fix.metrics, "train/tis", (1.221402758 + 2.718281828 + 0.904837418) / 3.0);
  config.kind = CorrectionKind::kIcePop;
  EXPECT_THAT(corrected({listed_row()}, config).rows[0].weights,
              ElementsAre(DoubleNear(1.221402758, 1e-8), 0.0, DoubleNear(0.904837418, 1e-8)));
}

TEST(CorrectionTest, MultiLevelGivesTheListedValues) {
  const OwnedRow row = listed_row();
  CorrectionConfig config = mis(RatioLevel::kSequence, WeightMode::kTruncate);
  config.bounds.upper = 10.0;
  EXPECT_THAT(corrected({row}, config).rows[0].weights, Each(DoubleNear(3.004166024, 1e-8)));
  config.level = RatioLevel::kGeometric;
  EXPECT_THAT(corrected({row}, config).rows[0].weights, Each(DoubleNear(1.442916867, 1e-8)));
  const Corrections token = corrected({row}, mis(RatioLevel::kToken, WeightMode::kMask));
  EXPECT_THAT(token.rows[0].weights,
              ElementsAre(DoubleNear(1.221402758, 1e-8), 0.0, DoubleNear(0.904837418, 1e-8)));
  EXPECT_THAT(corrected({row}, mis(RatioLevel::kSequence, WeightMode::kMask)).rows[0].weights,
              Each(0.0));
  expect_metric(token.metrics, "train/mis_k3_kl", 0.2481740016);
  expect_metric(token.metrics, "train/mis_kl", -1.1 / 3.0);
  expect_metric(token.metrics, "train/mis_chi2_token", 2.23320385);
  expect_metric(token.metrics, "train/mis_chi2_seq", 8.025013499);
  expect_metric(token.metrics, "train/mis_ess", 0.8065406652);
  expect_metric(token.metrics, "train/ess_ratio", 0.8065406652);
  expect_metric(token.metrics, "train/mis_training_ppl", 3.211270543);
  expect_metric(token.metrics, "train/mis_rollout_ppl", 4.63359643);
  expect_metric(token.metrics, "train/mis_log_ppl_diff", 1.1 / 3.0);
  expect_metric(token.metrics, "train/mis_mask_fraction_high", 1.0 / 3.0);
  expect_metric(token.metrics, "train/mis_mask_fraction_low", 0.0);
  expect_metric(token.metrics, "train/mis_ratio_max", 2.718281828);
  expect_metric(token.metrics, "train/mis_weight_min", 0.0);
}

TEST(CorrectionTest, ModesDifferOutsideTheBoundsOnly) {
  OwnedRow row;
  row.mask = {1, 1, 1, 0};
  row.old_logprobs = {-1.0, -1.0, -1.0, -1.0};
  row.rollout_logprobs = {-2.0, -1.1, 0.0, -9.0};  // ratios e, e^0.1, 1/e; masked
  const auto near = [](double value) { return DoubleNear(value, 1e-12); };
  const double inside = std::exp(0.1);
  EXPECT_THAT(corrected({row}, mis(RatioLevel::kToken, WeightMode::kTruncate)).rows[0].weights,
              ElementsAre(2.0, near(inside), near(std::exp(-1.0)), 1.0));
  EXPECT_THAT(corrected({row}, mis(RatioLevel::kToken, WeightMode::kClip)).rows[0].weights,
              ElementsAre(2.0, near(inside), 0.5, 1.0));
  EXPECT_THAT(corrected({row}, mis(RatioLevel::kToken, WeightMode::kMask)).rows[0].weights,
              ElementsAre(0.0, near(inside), 0.0, 1.0));
  CorrectionConfig upper_alone = mis(RatioLevel::kToken, WeightMode::kClip);
  upper_alone.bounds = {std::nullopt, 4.0};
  EXPECT_THAT(corrected({row}, upper_alone).rows[0].weights,
              ElementsAre(near(std::exp(1.0)), near(inside), near(std::exp(-1.0)), 1.0));
}

TEST(CorrectionTest, RejectionAndVetoMaskWithoutChangingDenominators) {
  std::vector<OwnedRow> rows = {listed_row(), listed_row()};
  rows[1].sample = 1;
  rows[1].old_logprobs = {-12.0, -2.0, -0.5};  // first token: e^-10.8 is below the veto
  CorrectionConfig config = mis(RatioLevel::kToken, WeightMode::kTruncate);
  config.use_rs = true;
  config.rs_bounds = {0.5, 2.0};
  const Corrections fix = corrected(rows, config);
  EXPECT_THAT(fix.rows[0].keep, ElementsAre(1, 0, 1));
  EXPECT_THAT(fix.rows[1].keep, ElementsAre(0, 0, 0));
  expect_metric(fix.metrics, "train/mis_catastrophic_token_fraction", 1.0 / 6.0);
  expect_metric(fix.metrics, "train/mis_catastrophic_seq_fraction", 0.5);
  expect_metric(fix.metrics, "train/mis_rs_masked_fraction", 3.0 / 6.0);
  // As the loss sees it: l = l_old, A = 1; only two of six tokens are left, over six.
  for (OwnedRow& row : rows) {
    row.logprobs = row.old_logprobs;
    row.advantages.assign(3, 1.0);
  }
  auto seen = views(rows);
  for (size_t i = 0; i < 2; ++i) {
    seen[i].weights = Numbers(fix.rows[i].weights);
    seen[i].keep = fix.rows[i].keep;
  }
  PolicyLossConfig loss;
  loss.aggregation.agg = LossAgg::kTokenMean;
  EXPECT_NEAR(
      policy_loss(seen, loss, step_totals(seen)).loss(), -(1.221402758 + 0.904837418) / 6.0, 1e-8);
  config.rs_veto_threshold = 0.0;
  EXPECT_THAT(corrected(rows, config).rows[1].keep, ElementsAre(0, 0, 1));
  config.rs_level = RatioLevel::kGeometric;
  EXPECT_THAT(corrected(rows, config).rows[0].keep, Each(1));
  EXPECT_THAT(corrected(rows, config).rows[1].keep, Each(0));
}

TEST(CorrectionTest, NormalisedWeightsHaveMeanOne) {
  std::vector<OwnedRow> rows = {listed_row(), listed_row()};
  rows[1].sample = 1;
  rows[1].old_logprobs = {-1.3, -2.9, -0.5};
  rows[1].mask = {1, 0, 1};
  CorrectionConfig config = mis(RatioLevel::kToken, WeightMode::kTruncate);
  const Corrections plain = corrected(rows, config);
  config.batch_normalize = true;
  const Corrections fix = corrected(rows, config);
  double sum = 0.0;
  for (size_t i = 0; i < 2; ++i) {
    for (size_t t = 0; t < 3; ++t) {
      sum += rows[i].mask[t] != 0 ? fix.rows[i].weights[t] : 0.0;
    }
  }
  EXPECT_NEAR(sum / 5.0, 1.0, 1e-12);
  const double factor = metric(fix.metrics, "train/mis_batch_norm_factor");
  EXPECT_NEAR(plain.rows[0].weights[1] / fix.rows[0].weights[1], factor, 1e-12);
}

TEST(CorrectionTest, NoDriftGivesUnitWeightsExactly) {
  OwnedRow row = listed_row();
  row.rollout_logprobs = row.old_logprobs;
  for (const RatioLevel level :
       {RatioLevel::kToken, RatioLevel::kSequence, RatioLevel::kGeometric}) {
    const Corrections fix = corrected({row}, mis(level, WeightMode::kMask));
    EXPECT_THAT(fix.rows[0].weights, Each(1.0));
    EXPECT_THAT(fix.rows[0].keep, Each(1));
    EXPECT_EQ(fix.ess_ratio, 1.0);
  }
}

TEST(CorrectionTest, BadInputIsNamed) {
  OwnedRow row = listed_row();
  row.rollout_logprobs.pop_back();
  EXPECT_THROW(corrected({row}, {}), Error);
  row = listed_row();
  row.old_logprobs[1] = NAN;
  EXPECT_THROW(corrected({row}, {}), Error);
  CorrectionConfig config;
  config.tis_clip = 0.5;
  config.tis_clip_low = 0.6;
  EXPECT_THROW(config.validate(), ConfigError);
}

TEST(CorrectionTest, TheGuardStopsAfterThreeLowSteps) {
  using Verdict = EssGuard::Verdict;
  EssGuard guard(0.1);
  EXPECT_EQ(guard.observe(0.9), Verdict::kFine);
  EXPECT_EQ(guard.observe(0.4), Verdict::kWarn);
  EXPECT_EQ(guard.observe(0.05), Verdict::kWarn);
  EXPECT_EQ(guard.observe(0.05), Verdict::kWarn);
  EXPECT_EQ(guard.observe(0.2), Verdict::kWarn);
  EXPECT_EQ(guard.observe(0.05), Verdict::kWarn);
  EXPECT_EQ(guard.observe(0.05), Verdict::kWarn);
  EXPECT_EQ(guard.observe(0.05), Verdict::kStop);
}

}  // namespace
}  // namespace baleen::policy
