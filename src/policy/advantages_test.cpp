// Advantages: listed values, masks, groups found by id, whitening in any order.

#include "policy/advantages.h"

#include <algorithm>
#include <cmath>
#include <random>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/error.h"

namespace baleen::policy {
namespace {

const std::vector<uint8_t> kOneToken = {1};

std::vector<AdvantageRow> group_of(const std::vector<double>& rewards, int64_t group = 0) {
  std::vector<AdvantageRow> rows;
  for (const double reward : rewards) {
    AdvantageRow row;
    row.sample = static_cast<int64_t>(rows.size()) + 1000 * group;
    row.rollout = row.sample;
    row.group = group;
    row.reward = reward;
    row.mask = kOneToken;
    rows.push_back(row);
  }
  return rows;
}

void expect_scalars(const std::vector<double>& rewards,
                    const AdvantageConfig& config,
                    const std::vector<double>& expected) {
  const auto scalars = group_advantages(group_of(rewards), config);
  ASSERT_EQ(scalars.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_TRUE(scalars[i].has_value());
    EXPECT_NEAR(*scalars[i], expected[i], 1e-7 * std::max(1.0, std::abs(expected[i])));
  }
}

TEST(AdvantageTest, GroupRelativeGivesTheListedValues) {
  const AdvantageConfig grpo;
  const double ones[] = {1.0, 0.0, 0.0, 1.0};
  EXPECT_EQ(group_statistics(ones, 1).mean, 0.5);
  EXPECT_NEAR(group_statistics(ones, 1).deviation, 0.5773502692, 1e-10);
  expect_scalars({1, 0, 0, 1}, grpo, {0.8660239038, -0.8660239038, -0.8660239038, 0.8660239038});
  expect_scalars({1, 0, 0, 0}, grpo, {1.499997, -0.499999, -0.499999, -0.499999});
  expect_scalars({1, 1, 1, 1}, grpo, {0, 0, 0, 0});
  expect_scalars({2, -1, 0.5}, grpo, {0.9999993333, -0.9999993333, 0.0});
  AdvantageConfig plain;
  plain.grpo_std_normalization = false;
  expect_scalars({2, -1, 0.5}, plain, {1.5, -1.5, 0.0});
  plain.estimator = Estimator::kDrGrpo;
  plain.grpo_std_normalization = true;
  expect_scalars({2, -1, 0.5}, plain, {1.5, -1.5, 0.0});
  AdvantageConfig rloo;
  rloo.estimator = Estimator::kRloo;
  expect_scalars({1, 0, 0, 0}, rloo, {1.0, -1.0 / 3, -1.0 / 3, -1.0 / 3});
}

TEST(AdvantageTest, EqualRewardsAndLoneSamplesGiveExactlyZero) {
  for (const Estimator estimator : {Estimator::kGrpo, Estimator::kDrGrpo, Estimator::kRloo}) {
    AdvantageConfig config;
    config.estimator = estimator;
    // 0.1 is not representable: the mean of three of them is not 0.1 if it is summed.
    for (const auto& rewards : {std::vector<double>{0.1, 0.1, 0.1}, {0.7}, {-3.3, -3.3}}) {
      for (const auto& scalar : group_advantages(group_of(rewards), config)) {
        EXPECT_EQ(*scalar, 0.0);
      }
    }
  }
}

TEST(AdvantageTest, GeneralizedEstimationGivesTheListedValues) {
  const std::vector<double> values = {0.5, 0.4, 0.3};
  const std::vector<double> rewards = {0.0, 0.0, 1.0};
  const std::vector<uint8_t> mask = {1, 1, 1};
  const TokenAdvantages gae = generalized_advantages(rewards, Numbers(values), mask, 1.0, 0.95);
  const double advantages[] = {0.43675, 0.565, 0.7};
  const double returns[] = {0.93675, 0.965, 1.0};
  for (size_t t = 0; t < 3; ++t) {
    EXPECT_NEAR(gae.advantages[t], advantages[t], 1e-9);
    EXPECT_NEAR(gae.returns[t], returns[t], 1e-9);
  }
  // A masked token between them is skipped, whatever its value and reward.
  const std::vector<double> gap_values = {0.5, 0.4, 99.0, 0.3};
  const std::vector<double> gap_rewards = {0.0, 0.0, 50.0, 1.0};
  const std::vector<uint8_t> gap_mask = {1, 1, 0, 1};
  const TokenAdvantages gap =
      generalized_advantages(gap_rewards, Numbers(gap_values), gap_mask, 1.0, 0.95);
  EXPECT_EQ(gap.advantages[0], gae.advantages[0]);
  EXPECT_EQ(gap.advantages[1], gae.advantages[1]);
  EXPECT_EQ(gap.advantages[2], 0.0);
  EXPECT_EQ(gap.advantages[3], gae.advantages[2]);
}

TEST(AdvantageTest, ReinforcePlusPlusGivesTheListedValues) {
  const std::vector<uint8_t> mask = {1, 1, 1};
  const std::vector<double> logprobs = {-1.0, -1.0, -1.0};
  const std::vector<double> reference = {-1.1, -1.2, -1.0};  // k1: 0.1, 0.2, 0
  AdvantageRow row;
  row.reward = 1.0;
  row.mask = mask;
  row.logprobs = Numbers(logprobs);
  row.ref_logprobs = Numbers(reference);
  AdvantageConfig config;
  config.estimator = Estimator::kReinforcePlusPlus;
  config.kl_coef = 0.1;
  config.gamma = 0.9;
  const auto result = unwhitened_advantages(std::span(&row, 1), config);
  EXPECT_NEAR(result[0].advantages[0], 0.782, 1e-12);
  EXPECT_NEAR(result[0].advantages[1], 0.88, 1e-12);
  EXPECT_NEAR(result[0].advantages[2], 1.0, 1e-12);
  EXPECT_THROW(config.validate(), ConfigError);
  config.normalize_advantages = true;
  EXPECT_NO_THROW(config.validate());
  config.estimator = Estimator::kReinforcePlusPlusBaseline;
  const auto baseline = unwhitened_advantages(std::span(&row, 1), config);
  EXPECT_NEAR(baseline[0].advantages[0], -0.01, 1e-12);  // alone in its group: R - mean = 0
  EXPECT_NEAR(baseline[0].advantages[1], -0.02, 1e-12);
  row.ref_logprobs = {};
  EXPECT_THROW(unwhitened_advantages(std::span(&row, 1), config), Error);
}

TEST(AdvantageTest, TheTeacherTermGivesTheListedValue) {
  auto rows = group_of({2.0, 0.0});
  const std::vector<double> logprob = {-0.7};
  const std::vector<double> teacher = {-0.4};
  for (AdvantageRow& row : rows) {
    row.logprobs = Numbers(logprob);
    row.teacher_logprobs = Numbers(teacher);
  }
  AdvantageConfig config;
  config.estimator = Estimator::kDrGrpo;
  config.use_opd = true;
  EXPECT_NEAR(compute_advantages(rows, config)[0].advantages[0], 1.3, 1e-12);
  config.estimator = Estimator::kOpd;
  EXPECT_NEAR(compute_advantages(rows, config)[0].advantages[0], 0.3, 1e-12);
}

TEST(AdvantageTest, RowsOfOneRolloutCountOnce) {
  // Rewards 1, 0, 0; the first rollout was split in two rows.
  auto rows = group_of({1.0, 1.0, 0.0, 0.0});
  rows[1].rollout = rows[0].rollout;
  rows[1].sample = rows[0].sample;
  rows[1].segment = 1;
  const auto scalars = group_advantages(rows, {});
  const auto plain = group_advantages(group_of({1.0, 0.0, 0.0}), {});
  EXPECT_EQ(*scalars[0], *plain[0]);
  EXPECT_EQ(*scalars[1], *plain[0]);
  EXPECT_EQ(*scalars[2], *plain[1]);
  rows[1].reward = 0.5;
  EXPECT_THROW(group_advantages(rows, {}), Error);
  rows[1].reward = 1.0;
  rows[1].group = 7;
  EXPECT_THROW(group_advantages(rows, {}), Error);
}

TEST(AdvantageTest, SamplesOutsideTheBaselineStillGetAnAdvantage) {
  auto rows = group_of({1.0, 0.0, -5.0});
  rows[2].in_baseline = false;
  AdvantageConfig config;
  config.grpo_std_normalization = false;
  const auto scalars = group_advantages(rows, config);
  EXPECT_EQ(*scalars[0], 0.5);
  EXPECT_EQ(*scalars[1], -0.5);
  EXPECT_EQ(*scalars[2], -5.5);
}

TEST(AdvantageTest, WhiteningIsExactInAnyOrder) {
  std::mt19937 random(11);
  std::normal_distribution<double> normal(3.0, 2.0);
  std::vector<std::vector<double>> logprobs(40);
  std::vector<std::vector<double>> reference(40);
  std::vector<std::vector<uint8_t>> masks(40);
  std::vector<AdvantageRow> rows(40);
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t t = 0; t < 1 + i % 7; ++t) {
      logprobs[i].push_back(-std::abs(normal(random)));
      reference[i].push_back(-std::abs(normal(random)));
      masks[i].push_back(random() % 4 != 0);
    }
    rows[i].sample = static_cast<int64_t>(i);
    rows[i].rollout = rows[i].sample;
    rows[i].group = static_cast<int64_t>(i / 4);
    rows[i].reward = normal(random);
    rows[i].mask = masks[i];
    rows[i].logprobs = Numbers(logprobs[i]);
    rows[i].ref_logprobs = Numbers(reference[i]);
  }
  AdvantageConfig config;
  config.estimator = Estimator::kReinforcePlusPlus;
  config.kl_coef = 0.3;
  config.normalize_advantages = true;
  const auto straight = compute_advantages(rows, config);
  double sum = 0.0;
  double squares = 0.0;
  double count = 0.0;
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t t = 0; t < rows[i].mask.size(); ++t) {
      const double a = straight[i].advantages[t];
      sum += a;
      squares += a * a;
      count += rows[i].mask[t];
      if (rows[i].mask[t] == 0) {
        EXPECT_EQ(a, 0.0);
      }
    }
  }
  EXPECT_NEAR(sum / count, 0.0, 1e-12);
  EXPECT_NEAR(squares / count, 1.0, 1e-6);
  std::vector<size_t> order(rows.size());
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  std::shuffle(order.begin(), order.end(), random);
  std::vector<AdvantageRow> shuffled;
  for (const size_t i : order) {
    shuffled.push_back(rows[i]);
  }
  const auto other = compute_advantages(shuffled, config);
  for (size_t i = 0; i < order.size(); ++i) {
    EXPECT_EQ(other[i].advantages, straight[order[i]].advantages);
  }
  // Two ranks that add their sums.
  const std::span<const AdvantageRow> all(rows);
  auto parts = unwhitened_advantages(rows, config);
  WhiteningSums sums = whitening_sums(all.subspan(0, 20), std::span(parts).subspan(0, 20));
  sums.add(whitening_sums(all.subspan(20), std::span(parts).subspan(20)));
  whiten(rows, sums, parts);
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t t = 0; t < rows[i].mask.size(); ++t) {
      EXPECT_NEAR(parts[i].advantages[t], straight[i].advantages[t], 1e-12);
    }
  }
}

RC_GTEST_PROP(AdvantagePropertyTest, GroupsSumToZeroAndIgnoreTheOrder, ()) {
  const auto codes = *rc::gen::container<std::vector<int>>(12, rc::gen::inRange(-4, 5));
  std::vector<AdvantageRow> rows;
  for (size_t i = 0; i < codes.size(); ++i) {
    AdvantageRow row;
    row.sample = static_cast<int64_t>(i);
    row.rollout = row.sample;
    row.group = static_cast<int64_t>(i % 3);
    row.mask = kOneToken;
    if (codes[i] != 4) {
      row.reward = 0.1 * codes[i];
    }
    rows.push_back(row);
  }
  for (const Estimator estimator : {Estimator::kGrpo, Estimator::kDrGrpo, Estimator::kRloo}) {
    AdvantageConfig config;
    config.estimator = estimator;
    const auto scalars = group_advantages(rows, config);
    double sums[3] = {};
    for (size_t i = 0; i < rows.size(); ++i) {
      RC_ASSERT(scalars[i].has_value() == rows[i].reward.has_value());
      sums[i % 3] += scalars[i].value_or(0.0);
    }
    for (const double sum : sums) {
      RC_ASSERT(std::abs(sum) < 1e-9);
    }
    std::vector<AdvantageRow> reversed(rows.rbegin(), rows.rend());
    const auto mirrored = group_advantages(reversed, config);
    for (size_t i = 0; i < rows.size(); ++i) {
      RC_ASSERT(mirrored[rows.size() - 1 - i] == scalars[i]);
    }
  }
}

}  // namespace
}  // namespace baleen::policy
