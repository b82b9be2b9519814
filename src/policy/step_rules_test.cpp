// What stands around the losses: batch arithmetic, shaping, filter, pass@k, alarms,
// rollout numbers.

#include <algorithm>
#include <cmath>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "policy/alarms.h"
#include "policy/batch_arithmetic.h"
#include "policy/reward_shaping.h"
#include "policy/rollout_metrics.h"

namespace baleen::policy {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(BatchArithmeticTest, AnyThreeGiveTheFourth) {
  const BatchKnobs all{32, 8, 64, 4};
  for (int missing = -1; missing < 4; ++missing) {
    BatchKnobs knobs = all;
    if (missing == 0) {
      knobs.rollout_batch_size.reset();
    } else if (missing == 1) {
      knobs.n_samples_per_prompt.reset();
    } else if (missing == 2) {
      knobs.global_batch_size.reset();
    } else if (missing == 3) {
      knobs.num_steps_per_rollout.reset();
    }
    const BatchSizes sizes = solve_batch(knobs, 1, false);
    EXPECT_EQ(sizes.prompts, 32);
    EXPECT_EQ(sizes.samples_per_prompt, 8);
    EXPECT_EQ(sizes.samples_per_step, 64);
    EXPECT_EQ(sizes.steps_per_rollout, 4);
  }
  EXPECT_EQ(solve_batch({.rollout_batch_size = 6}, 1, false).samples_per_step, 6);
  EXPECT_EQ(solve_batch({32, 8, std::nullopt, std::nullopt}, 1, false).samples_per_step, 256);
  EXPECT_EQ(
      solve_batch({.rollout_batch_size = 8, .global_batch_size = 2}, 1, false).steps_per_rollout,
      4);
}

std::string batch_error(const BatchKnobs& knobs, int64_t data_parallel) {
  try {
    solve_batch(knobs, data_parallel, false);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

TEST(BatchArithmeticTest, DisagreementShowsBothProducts) {
  const std::string message = batch_error({32, 8, 64, 3}, 1);
  EXPECT_THAT(message, HasSubstr("= 256"));
  EXPECT_THAT(message, HasSubstr("= 192"));
  EXPECT_THAT(batch_error({32, 8, 100, std::nullopt}, 1), HasSubstr("global_batch_size"));
  EXPECT_THAT(batch_error({32, 8, 64, 4}, 3), HasSubstr("data-parallel"));
  EXPECT_NO_THROW(solve_batch({32, 8, 64, 4}, 3, true));
  EXPECT_THAT(batch_error({0, 8, 64, 4}, 1), HasSubstr("rollout_batch_size"));
  EXPECT_THAT(batch_error({}, 1), HasSubstr("must be given"));
}

TEST(RewardShapingTest, OverlongPenaltyGivesTheListedValues) {
  const OverlongConfig config{20480, 4096, 1.0};
  EXPECT_EQ(overlong_penalty(16384, config), 0.0);
  EXPECT_EQ(overlong_penalty(16385, config), -0.000244140625);
  EXPECT_EQ(overlong_penalty(18432, config), -0.5);
  EXPECT_EQ(overlong_penalty(20480, config), -1.0);
  EXPECT_EQ(overlong_penalty(0, config), 0.0);
  EXPECT_EQ(overlong_penalty(18432, {20480, 4096, 0.5}), -0.25);
  EXPECT_EQ(overlong_penalty(1'000'000, {}), 0.0);
  EXPECT_THROW((OverlongConfig{100, 0, 1.0}.validate()), ConfigError);
  EXPECT_THROW((OverlongConfig{100, 101, 1.0}.validate()), ConfigError);
}

TEST(RewardShapingTest, PassAtKGivesTheListedValues) {
  EXPECT_NEAR(pass_at_k(8, 3, 1), 0.375, 1e-12);
  EXPECT_NEAR(pass_at_k(8, 3, 2), 0.6428571429, 1e-10);
  EXPECT_NEAR(pass_at_k(8, 3, 4), 0.9285714286, 1e-10);
  EXPECT_EQ(pass_at_k(8, 3, 8), 1.0);
  EXPECT_EQ(pass_at_k(8, 0, 8), 0.0);
  EXPECT_EQ(pass_at_k(1, 1, 1), 1.0);
  // Counting every draw of 3 of 6 with 2 right ones: 4 of 20 have none.
  EXPECT_NEAR(pass_at_k(6, 2, 3), 1.0 - 4.0 / 20.0, 1e-12);
}

std::vector<FilterSample> group_of_values(std::initializer_list<double> values) {
  std::vector<FilterSample> group;
  for (const double value : values) {
    group.push_back({value, SampleEnd::kCompleted});
  }
  return group;
}

TEST(GroupFilterTest, KeepsGroupsWithSpreadAlone) {
  EXPECT_EQ(drop_reason(group_of_values({1, 1, 1, 1}), {}), "zero_std_1");
  EXPECT_EQ(drop_reason(group_of_values({0, 0}), {}), "zero_std_0");
  EXPECT_EQ(drop_reason(group_of_values({0.5, 0.5}), {}), "zero_std_0.5");
  EXPECT_EQ(drop_reason(group_of_values({1, 0, 1, 1}), {}), "");
  EXPECT_EQ(drop_reason(group_of_values({1e-9, 0.0}), {}), "zero_std_5e-10");
  EXPECT_EQ(drop_reason(group_of_values({0.1, 0.1, 0.1}), {}), "zero_std_0.1");
  EXPECT_EQ(drop_reason(group_of_values({1.0}), {}), "zero_std_1");
  FilterConfig off;
  off.nonzero_std = false;
  EXPECT_EQ(drop_reason(group_of_values({1, 1}), off), "");
  auto group = group_of_values({1, 0});
  group[0].end = SampleEnd::kTruncated;
  group[1].end = SampleEnd::kTruncated;
  EXPECT_EQ(drop_reason(group, {}), "");
  FilterConfig strict;
  strict.drop_all_truncated = true;
  EXPECT_EQ(drop_reason(group, strict), "all_truncated");
  group[1].end = SampleEnd::kAborted;
  EXPECT_EQ(drop_reason(group, {}), "aborted");
  group[0].end = SampleEnd::kFailed;
  EXPECT_EQ(drop_reason(group, {}), "failed");
}

TEST(GroupFilterTest, CountsWhyGroupsWereDropped) {
  FilterCounts counts;
  for (const auto& group : {group_of_values({1, 1}),
                            group_of_values({1, 1}),
                            group_of_values({0, 0}),
                            group_of_values({1, 0})}) {
    counts.add(group, drop_reason(group, {}));
  }
  const Metrics metrics = counts.metrics();
  EXPECT_EQ(metric(metrics, "rollout/dynamic_filter/drop_zero_std_1"), 2.0);
  EXPECT_EQ(metric(metrics, "rollout/zero_std/count_0"), 1.0);
  EXPECT_EQ(metric(metrics, "rollout/zero_std/all_one_percentage"), 50.0);
  EXPECT_EQ(metric(metrics, "rollout/attempts_per_kept_group"), 4.0);
  EXPECT_EQ(metric(metrics, "passrate/1"), 0.5);
  EXPECT_EQ(metric(metrics, "passrate/le_0.5"), 0.25);
  EXPECT_THAT(counts.summary(8), HasSubstr("kept 1 of 8"));
}

TEST(RewardShapingTest, RepetitionNeedsFourPeriods) {
  const std::vector<int32_t> three = {9, 9, 1, 2, 1, 2, 1, 2};
  const std::vector<int32_t> four = {9, 9, 1, 2, 1, 2, 1, 2, 1, 2};
  EXPECT_FALSE(repeats_at_end(three));
  EXPECT_TRUE(repeats_at_end(four));
  EXPECT_FALSE(repeats_at_end({}));
  EXPECT_FALSE(repeats_at_end(std::vector<int32_t>{5, 5, 5}));
  EXPECT_TRUE(repeats_at_end(std::vector<int32_t>{5, 5, 5, 5}));
  std::vector<int32_t> ramp(128);
  std::iota(ramp.begin(), ramp.end(), 0);
  std::vector<int32_t> longest;
  for (int i = 0; i < 4; ++i) {
    longest.insert(longest.end(), ramp.begin(), ramp.end());
  }
  EXPECT_TRUE(repeats_at_end(longest));
  longest.erase(longest.begin());
  EXPECT_FALSE(repeats_at_end(longest));
}

std::vector<std::string> names(const std::vector<Alarm>& alarms) {
  std::vector<std::string> result;
  for (const Alarm& alarm : alarms) {
    result.push_back(alarm.name);
  }
  return result;
}

TEST(AlarmTest, TheFirstStepComparesLogprobs) {
  StepHealth health;
  health.mean_old_logprob = -1.0;
  health.mean_rollout_logprob = -1.02;
  health.drift_mean_abs = 0.04;
  health.drift_samples = {17, 4};
  EXPECT_THAT(Alarms({}).observe(health), IsEmpty());
  health.mean_rollout_logprob = -1.04;
  health.drift_mean_abs = 0.06;
  AlarmConfig strict;
  strict.strict = true;
  const auto alarms = Alarms(strict).observe(health);
  EXPECT_THAT(names(alarms), ElementsAre("logprob_gap", "drift"));
  EXPECT_TRUE(alarms[0].stop);
  EXPECT_THAT(alarms[0].message, HasSubstr("17, 4"));
  // A step in which nothing was trained is not the first one.
  Alarms later({});
  later.observe({});
  EXPECT_THAT(names(later.observe(health)), ElementsAre("logprob_gap", "drift"));
  EXPECT_THAT(later.observe(health), IsEmpty());
}

TEST(AlarmTest, TheReferenceMustBeTheActorAtFirst) {
  StepHealth health;
  health.mean_abs_ref_old = 1e-3;
  AlarmConfig config;
  config.ref_is_actor = true;
  EXPECT_THAT(names(Alarms(config).observe(health)), ElementsAre("ref_gap"));
  config.replay = true;
  EXPECT_THAT(Alarms(config).observe(health), IsEmpty());
  health.mean_abs_ref_old = 6e-3;
  EXPECT_THAT(names(Alarms(config).observe(health)), ElementsAre("ref_gap"));
}

TEST(AlarmTest, EntropyAndDriftAreHeldAgainstTwentyStepsBefore) {
  AlarmConfig config;
  config.tuned_model = true;
  Alarms alarms(config);
  StepHealth health;
  health.entropy = 0.8;
  health.drift_mean_abs = 1e-3;
  health.mean_response_len = 100.0;
  EXPECT_THAT(names(alarms.observe(health)), ElementsAre("entropy"));
  for (int step = 1; step < 20; ++step) {
    EXPECT_THAT(alarms.observe(health), IsEmpty());
  }
  health.entropy = 0.1;
  health.drift_mean_abs = 3e-3;
  EXPECT_THAT(names(alarms.observe(health)), ElementsAre("drift_growth", "entropy_fall"));
  health.mean_response_len = 150.0;  // longer responses may drift more
  EXPECT_THAT(names(alarms.observe(health)), ElementsAre("entropy_fall"));
}

TEST(AlarmTest, ZeroDriftNeverGrows) {
  Alarms alarms({});
  StepHealth health;
  health.drift_mean_abs = 0.0;
  for (int step = 0; step < 50; ++step) {
    EXPECT_THAT(alarms.observe(health), IsEmpty());
  }
}

TEST(AlarmTest, GroupsTruncationAndGradientHaveBounds) {
  Alarms alarms({});
  StepHealth health;
  health.kept_groups = 1;
  health.attempted_groups = 11;
  health.truncated_ratio = 0.31;
  health.truncated_samples = {5};
  health.grad_norm = 1.0;
  EXPECT_THAT(names(alarms.observe(health)), ElementsAre("few_groups", "truncated"));
  health.attempted_groups = 10;
  health.truncated_ratio = 0.3;
  for (int step = 0; step < 5; ++step) {
    EXPECT_THAT(alarms.observe(health), IsEmpty());
  }
  health.grad_norm = 10.5;
  health.longest_samples = {99};
  const auto spike = alarms.observe(health);
  EXPECT_THAT(names(spike), ElementsAre("grad_norm"));
  EXPECT_THAT(spike[0].message, HasSubstr("99"));
  EXPECT_FALSE(spike[0].skip_step);
  health.grad_norm = NAN;
  EXPECT_THAT(names(alarms.observe(health)), ElementsAre("grad_norm"));
}

TEST(RolloutMetricsTest, GivesTheNamedNumbers) {
  const std::vector<uint8_t> masks[] = {{1, 0}, {1, 1, 1, 1}};
  const std::vector<int32_t> tokens[] = {{1, 2}, {7, 7, 7, 7}};
  const std::vector<double> logprobs[] = {{-1.0, -50.0}, {-2.0, -2.0, -2.0, -3.0}};
  std::vector<RolloutFacts> samples(2);
  for (size_t i = 0; i < 2; ++i) {
    samples[i].sample = static_cast<int64_t>(1 - i);
    samples[i].raw_reward = static_cast<double>(i);
    samples[i].reward = static_cast<double>(i) - 0.5;
    samples[i].prompt_tokens = 10;
    samples[i].mask = masks[i];
    samples[i].tokens = tokens[i];
    samples[i].rollout_logprobs = Numbers(logprobs[i]);
    samples[i].oldest_version = 3;
    samples[i].newest_version = static_cast<int64_t>(3 + i);
  }
  samples[1].end = SampleEnd::kTruncated;
  const Metrics metrics = rollout_metrics(samples);
  EXPECT_EQ(metric(metrics, "rollout/raw_reward"), 0.5);
  EXPECT_EQ(metric(metrics, "rollout/rewards"), 0.0);
  EXPECT_EQ(metric(metrics, "rollout/rollout_log_probs"), -2.0);
  EXPECT_EQ(metric(metrics, "rollout/response_len/mean"), 3.0);
  EXPECT_EQ(metric(metrics, "rollout/response_len/median"), 3.0);
  EXPECT_EQ(metric(metrics, "rollout/response_len/max"), 4.0);
  EXPECT_EQ(metric(metrics, "rollout/total_lengths"), 13.0);
  EXPECT_EQ(metric(metrics, "rollout/truncated_ratio"), 0.5);
  EXPECT_EQ(metric(metrics, "rollout/repetition_frac"), 0.5);
  EXPECT_EQ(metric(metrics, "rollout/weight_version/min"), 3.0);
  EXPECT_EQ(metric(metrics, "rollout/weight_version/max"), 4.0);
  EXPECT_EQ(metric(metrics, "rollout/weight_version/mean"), 3.25);
  EXPECT_EQ(metric(metrics, "rollout/mixed_version_ratio"), 0.5);
  EXPECT_THAT(metrics, Not(Contains(Field(&Metrics::value_type::first, "rollout/entropy"))));
  EXPECT_THAT(rollout_metrics({}), IsEmpty());
}

TEST(RolloutMetricsTest, EvaluationIsAveragedOverPrompts) {
  std::vector<EvalAnswer> answers;
  for (int64_t prompt = 0; prompt < 2; ++prompt) {
    for (int64_t i = 0; i < 4; ++i) {
      const bool right = prompt == 0 ? i == 0 : i < 3;
      answers.push_back({prompt, 4 * prompt + i, right ? 1.0 : 0.0, right, i == 3, 10 * i});
    }
  }
  std::reverse(answers.begin(), answers.end());
  const Metrics metrics = eval_metrics("set", answers);
  EXPECT_EQ(metric(metrics, "eval/set"), 0.5);
  EXPECT_EQ(metric(metrics, "eval/set-pass@1"), 0.5);
  EXPECT_NEAR(metric(metrics, "eval/set-pass@2"), (0.5 + 1.0) / 2.0, 1e-12);
  EXPECT_EQ(metric(metrics, "eval/set-pass@4"), 1.0);
  EXPECT_EQ(metric(metrics, "eval/set-truncated_ratio"), 0.25);
  EXPECT_EQ(metric(metrics, "eval/set-response_len/median"), 15.0);
  EXPECT_NEAR(metric(metrics, "eval/set-stderr"), 0.25, 1e-12);
  EXPECT_THAT(eval_metrics("none", {}), IsEmpty());
}

}  // namespace
}  // namespace baleen::policy
