// The pool: order, errors and time-outs counted, a hanging verifier survived, policies.

#include "rewards/reward_pool.h"

#include <atomic>
#include <limits>
#include <stdexcept>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "rewards/make_verifier.h"

namespace baleen::rewards {
namespace {

using std::chrono::milliseconds;

/// Does what the response says.
class ScriptedVerifier final : public Verifier {
 public:
  std::string name() const override { return "scripted"; }
  Result<Score> verify(const RewardInput& input, const CallLimits& /*limits*/) const override {
    if (input.response == "hang") {
      while (!released) {
        std::this_thread::sleep_for(milliseconds(1));
      }
    }
    if (input.response == "throw") {
      throw std::runtime_error("it broke");
    }
    if (input.response == "fail") {
      return Status::invalid("no score for this");
    }
    if (input.response == "nan") {
      return Score{std::numeric_limits<double>::quiet_NaN(), false, {}};
    }
    return Score{static_cast<double>(input.sample), true, {}};
  }
  mutable std::atomic<bool> released = false;
};

RewardInput input_of(int64_t sample, std::string response = "fine") {
  RewardInput input;
  input.sample = sample;
  input.response = std::move(response);
  return input;
}

TEST(RewardPoolTest, ScoresComeInTheOrderOfTheSamples) {
  RewardPool pool(std::make_shared<ScriptedVerifier>(), {.workers = 3});
  std::vector<RewardInput> inputs;
  for (int64_t i = 0; i < 100; ++i) {
    inputs.push_back(input_of(i));
  }
  const auto outcomes = pool.score(inputs);
  ASSERT_EQ(outcomes.size(), 100U);
  for (size_t i = 0; i < outcomes.size(); ++i) {
    EXPECT_EQ(outcomes[i].kind, OutcomeKind::kValue);
    EXPECT_EQ(outcomes[i].score.score, static_cast<double>(i));
  }
  const auto group = pool.score_group({input_of(7), input_of(8)});
  ASSERT_EQ(group.size(), 2U);
  EXPECT_EQ(group[1].score.score, 8.0);
  EXPECT_EQ(pool.take_counts().values, 102);
  EXPECT_EQ(pool.take_counts().values, 0);
}

TEST(RewardPoolTest, FailuresAreCountedAndNamedNeverZero) {
  RewardPool pool(std::make_shared<ScriptedVerifier>(), {.workers = 2});
  const auto outcomes =
      pool.score({input_of(0, "throw"), input_of(1, "fail"), input_of(2, "nan"), input_of(3)});
  EXPECT_EQ(outcomes[0].kind, OutcomeKind::kError);
  EXPECT_EQ(outcomes[0].message, "it broke");
  EXPECT_EQ(outcomes[1].message, "no score for this");
  EXPECT_EQ(outcomes[2].kind, OutcomeKind::kError);
  EXPECT_EQ(outcomes[3].kind, OutcomeKind::kValue);
  const RewardCounts counts = pool.take_counts();
  EXPECT_EQ(counts.errors, 3);
  EXPECT_EQ(counts.values, 1);
  const auto group = pool.score_group({input_of(0), input_of(1, "fail")});
  EXPECT_EQ(group[0].kind, OutcomeKind::kError);
  EXPECT_EQ(group[1].kind, OutcomeKind::kError);
}

TEST(RewardPoolTest, AHangingWorkerIsATimeOutAndTheRunGoesOn) {
  const auto verifier = std::make_shared<ScriptedVerifier>();
  RewardPoolConfig config;
  config.workers = 1;
  config.timeout = milliseconds(50);
  config.shutdown_grace = milliseconds(50);
  RewardPool pool(verifier, config);
  std::vector<RewardInput> inputs = {input_of(0, "hang"), input_of(1, "hang"), input_of(2)};
  const auto outcomes = pool.score(inputs);
  EXPECT_EQ(outcomes[0].kind, OutcomeKind::kTimeout);
  EXPECT_EQ(outcomes[1].kind, OutcomeKind::kTimeout);
  EXPECT_EQ(outcomes[2].kind, OutcomeKind::kValue);  // the pool has its width back
  const RewardCounts counts = pool.take_counts();
  EXPECT_EQ(counts.timeouts, 2);
  EXPECT_EQ(counts.abandoned_threads, 2);
  EXPECT_GE(counts.milliseconds_p99, 50.0);
  pool.shutdown();  // does not wait for them
  verifier->released = true;
}

TEST(RewardPoolTest, LateAnswersAreDropped) {
  const auto verifier = std::make_shared<ScriptedVerifier>();
  RewardPoolConfig config;
  config.workers = 1;
  config.timeout = milliseconds(30);
  RewardPool pool(verifier, config);
  std::atomic<int> calls = 0;
  pool.submit(input_of(0, "hang"), [&](RewardOutcome outcome) {
    EXPECT_EQ(outcome.kind, OutcomeKind::kTimeout);
    ++calls;
  });
  EXPECT_EQ(pool.score({input_of(1)})[0].kind, OutcomeKind::kValue);
  verifier->released = true;
  while (pool.take_counts().abandoned_threads > 0) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_EQ(calls, 1);
}

TEST(RewardPoolTest, ShutdownAnswersEveryCall) {
  const auto verifier = std::make_shared<ScriptedVerifier>();
  RewardPoolConfig config;
  config.workers = 1;
  config.shutdown_grace = milliseconds(20);
  std::atomic<int> errors = 0;
  {
    RewardPool pool(verifier, config);
    for (const char* response : {"hang", "fine", "fine"}) {
      pool.submit(input_of(0, response), [&](RewardOutcome outcome) {
        errors += outcome.kind == OutcomeKind::kError ? 1 : 0;
      });
    }
    std::this_thread::sleep_for(milliseconds(20));
    pool.shutdown();
    EXPECT_EQ(errors, 3);
    pool.submit(input_of(1), [&](RewardOutcome outcome) {
      errors += outcome.kind == OutcomeKind::kError ? 1 : 0;
    });
  }
  EXPECT_EQ(errors, 4);
  verifier->released = true;
}

TEST(RewardPolicyTest, SaysWhatAnErrorDoesToItsGroup) {
  RewardOutcome fine;
  fine.kind = OutcomeKind::kValue;
  fine.score.score = 1.0;
  RewardOutcome broken;
  broken.message = "it broke";
  const std::vector<RewardOutcome> outcomes = {fine, broken};
  const GroupVerdict zero = settle_group(outcomes, OnRewardError::kZero);
  EXPECT_TRUE(zero.keep);
  EXPECT_EQ(zero.scores[0].score, 1.0);
  EXPECT_EQ(zero.scores[1].score, 0.0);
  EXPECT_FALSE(settle_group(outcomes, OnRewardError::kDropGroup).keep);
  EXPECT_TRUE(settle_group({outcomes.data(), 1}, OnRewardError::kDropGroup).keep);
  EXPECT_THROW(settle_group(outcomes, OnRewardError::kFail), Error);
  EXPECT_EQ(parse_on_reward_error("drop_group"), OnRewardError::kDropGroup);
  EXPECT_FALSE(parse_on_reward_error("ignore"));
}

TEST(RewardPolicyTest, BoundsAreChecked) {
  EXPECT_THROW(RewardPoolConfig{.workers = 0}.validate(), ConfigError);
  EXPECT_THROW(RewardPoolConfig{.timeout = milliseconds(0)}.validate(), ConfigError);
}

}  // namespace
}  // namespace baleen::rewards
