// Drift numbers: listed values, buckets, stale rows, exact zero.

#include "policy/drift.h"

#include <cmath>

#include <gtest/gtest.h>

#include "base/error.h"

namespace baleen::policy {
namespace {

struct DriftArrays {
  std::vector<uint8_t> mask;
  std::vector<float> train;
  std::vector<float> rollout;

  DriftRow view(int64_t sample) const {
    DriftRow row;
    row.sample = sample;
    row.mask = mask;
    row.train = Numbers(train);
    row.rollout = Numbers(rollout);
    return row;
  }
};

TEST(DriftTest, GivesTheListedValues) {
  const std::vector<uint8_t> mask = {1, 1, 0, 1, 1};
  const std::vector<double> rollout = {-1.0, -1.0, -1.0, -1.0, -1.0};
  const std::vector<double> train = {-1.0, -0.99, 9.0, -1.02, -0.2};
  DriftRow row;
  row.mask = mask;
  row.train = Numbers(train);
  row.rollout = Numbers(rollout);
  const DriftReport report = measure_drift(std::span(&row, 1), {});
  EXPECT_NEAR(report.all.mean_abs, 0.2075, 1e-12);
  EXPECT_NEAR(report.all.max, 0.8, 1e-12);
  EXPECT_NEAR(report.all.k3, 0.1064474422, 1e-10);
  EXPECT_EQ(report.all.extreme_frac, 0.25);
  EXPECT_EQ(report.all.exact_frac, 0.25);
  EXPECT_NEAR(report.all.signed_mean, 0.1975, 1e-12);
  EXPECT_NEAR(report.all.p50, 0.01, 1e-12);
  EXPECT_NEAR(report.all.p90, 0.8, 1e-12);
  EXPECT_NEAR(report.seq_abs_mean, 0.79, 1e-12);
  EXPECT_NEAR(report.seq_abs_mean_per_token, 0.1975, 1e-12);
  EXPECT_EQ(report.all.tokens, 4);
  const Metrics metrics = report.metrics();
  EXPECT_EQ(metric(metrics, "drift/mean_abs"), report.all.mean_abs);
  EXPECT_NEAR(metric(metrics, "train/train_rollout_logprob_abs_diff"), 0.2075, 1e-12);
}

TEST(DriftTest, MeansOverTokensAndOverSamplesDiffer) {
  const DriftArrays one{{1}, {-1.0F}, {-2.0F}};
  const DriftArrays three{{1, 1, 1}, {-1.0F, -1.0F, -1.0F}, {-1.0F, -1.0F, -1.0F}};
  const DriftRow rows[] = {three.view(7), one.view(2)};
  const DriftReport report = measure_drift(rows, {});
  EXPECT_EQ(report.all.mean_abs, 0.25);
  EXPECT_EQ(report.sample_mean_abs, 0.5);
  EXPECT_EQ(report.rows, 2);
  EXPECT_EQ(report.worst_samples, std::vector<int64_t>{2});  // the other has no drift
}

TEST(DriftTest, EqualBitsAreExactlyZero) {
  const DriftArrays same{{1, 1, 0}, {-0.1F, -3.7F, 1.0F}, {-0.1F, -3.7F, 2.0F}};
  const DriftRow rows[] = {same.view(0)};
  const DriftReport report = measure_drift(rows, {});
  EXPECT_EQ(report.all.mean_abs, 0.0);
  EXPECT_EQ(report.all.max, 0.0);
  EXPECT_EQ(report.all.k3, 0.0);
  EXPECT_EQ(report.all.exact_frac, 1.0);
  EXPECT_EQ(report.seq_abs_mean, 0.0);
  EXPECT_NEAR(report.prob_pearson, 1.0, 1e-12);
  // One bit apart is neither exact nor zero.
  DriftArrays off = same;
  off.train[1] = std::nextafter(off.train[1], 0.0F);
  const DriftRow other[] = {off.view(0)};
  EXPECT_EQ(measure_drift(other, {}).all.exact_frac, 0.5);
  EXPECT_GT(measure_drift(other, {}).all.mean_abs, 0.0);
}

TEST(DriftTest, BucketsAreByPositionInTheRow) {
  DriftArrays flat;
  for (int t = 0; t < 600; ++t) {
    flat.mask.push_back(1);
    flat.train.push_back(-1.0F);
    flat.rollout.push_back(t < 30 ? -1.0F : -1.5F);
  }
  DriftRow row = flat.view(0);
  row.prompt_tokens = 100;
  const DriftReport report = measure_drift(std::span(&row, 1), {.index_topk = 32});
  // Edges 128 (and 4 * 32, the same), 512, 16384: positions 100..128 are 29 tokens.
  ASSERT_EQ(report.by_position.size(), 3U);
  EXPECT_EQ(report.by_position[0].name, "le_128");
  EXPECT_EQ(report.by_position[0].numbers.tokens, 29);
  EXPECT_EQ(report.by_position[0].numbers.mean_abs, 0.0);
  EXPECT_EQ(report.by_position[1].name, "le_512");
  EXPECT_EQ(report.by_position[1].numbers.tokens, 384);
  EXPECT_EQ(report.by_position[2].name, "le_16384");
  EXPECT_EQ(report.by_position[2].numbers.tokens, 187);
  const DriftReport nano = measure_drift(std::span(&row, 1), {.index_topk = 30});
  EXPECT_EQ(nano.by_position[0].name, "le_120");
  row.prompt_tokens = 20000;
  EXPECT_EQ(measure_drift(std::span(&row, 1), {}).by_position[0].name, "gt_16384");
}

TEST(DriftTest, DecilesPausesAndPrefillAreMeasuredWhereGiven) {
  DriftArrays arrays;
  std::vector<double> entropy;
  std::vector<double> prefill;
  std::vector<uint8_t> paused;
  for (int t = 0; t < 20; ++t) {
    arrays.mask.push_back(1);
    arrays.rollout.push_back(-1.0F);
    arrays.train.push_back(-1.0F - 0.25F * static_cast<float>(t / 10));
    entropy.push_back(static_cast<double>(t % 10));  // each value once in each half
    prefill.push_back(-1.125);
    paused.push_back(t >= 10);
  }
  DriftRow row = arrays.view(0);
  row.entropy = Numbers(entropy);
  row.prefill = Numbers(prefill);
  row.after_pause = paused;
  const DriftReport report = measure_drift(std::span(&row, 1), {});
  ASSERT_EQ(report.by_entropy.size(), 10U);
  for (const auto& decile : report.by_entropy) {
    EXPECT_EQ(decile.numbers.tokens, 2);
    EXPECT_EQ(decile.numbers.mean_abs, 0.125);
  }
  EXPECT_EQ(report.after_pause.tokens, 10);
  EXPECT_EQ(report.after_pause.mean_abs, 0.25);
  EXPECT_EQ(report.decode_vs_prefill, 0.125);
  EXPECT_EQ(report.prefill_vs_train, 0.125);
}

TEST(DriftTest, StaleRowsAreLeftOutAndBadOnesNamed) {
  const DriftArrays one{{1}, {-1.0F}, {-2.0F}};
  DriftRow rows[] = {one.view(0), one.view(1)};
  rows[1].fresh = false;
  EXPECT_EQ(measure_drift(rows, {}).stale_rows, 1);
  EXPECT_EQ(measure_drift(rows, {}).all.tokens, 1);
  rows[0].fresh = false;
  EXPECT_EQ(measure_drift(rows, {}).all.mean_abs, 0.0);
  EXPECT_TRUE(std::isnan(measure_drift(rows, {}).prob_pearson));
  DriftArrays bad = one;
  bad.train[0] = NAN;
  const DriftRow broken[] = {bad.view(12)};
  EXPECT_THROW(measure_drift(broken, {}), Error);
}

}  // namespace
}  // namespace baleen::policy
