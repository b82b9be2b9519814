// Case H20: packed samples, masks, group advantages, a sample without reward, equal rewards. Its
// conventions: population deviation, the ratio against the rollout's log-probabilities, and as
// mean_k3 the k3 of the KL term.

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include "policy/advantages.h"
#include "policy/drift.h"
#include "policy/policy_loss.h"
#include "policy/policy_rows_for_tests.h"

namespace baleen::policy {
namespace {

namespace bj = boost::json;

class CaseH20Test : public testing::Test {
 protected:
  void SetUp() override {
    std::ifstream file("tests/cases/H20_rl_batch_building.json");
    std::stringstream text;
    text << file.rdbuf();
    const bj::value all = bj::parse(text.str());
    input_ = all.at("input").as_object();
    expected_ = all.at("expected").as_object();
  }

  static std::vector<double> numbers(const bj::value& values) {
    std::vector<double> result;
    for (const bj::value& value : values.as_array()) {
      result.push_back(value.to_number<double>());
    }
    return result;
  }

  std::vector<std::optional<double>> advantages(const char* rewards, bool reversed = false) const {
    std::vector<AdvantageRow> rows;
    for (const bj::value& reward : input_.at(rewards).as_array()) {
      AdvantageRow row;
      row.sample = static_cast<int64_t>(rows.size());
      row.rollout = row.sample;
      if (!reward.is_null()) {
        row.reward = reward.to_number<double>();
      }
      rows.push_back(row);
    }
    if (reversed) {
      std::reverse(rows.begin(), rows.end());
    }
    AdvantageConfig config;
    config.grpo_std_ddof = 0;
    return group_advantages(rows, config);
  }

  bj::object input_;
  bj::object expected_;
};

TEST_F(CaseH20Test, AdvantagesLeaveOutTheSampleWithoutReward) {
  const auto scalars = advantages("group_rewards");
  const bj::array& expected = expected_.at("advantages").as_array();
  ASSERT_EQ(scalars.size(), expected.size());
  for (size_t i = 0; i < scalars.size(); ++i) {
    ASSERT_EQ(scalars[i].has_value(), !expected[i].is_null());
    if (scalars[i]) {
      EXPECT_NEAR(*scalars[i], expected[i].to_number<double>(), 1e-6);
    }
  }
  const auto shuffled = advantages("group_rewards", true);
  for (size_t i = 0; i < scalars.size(); ++i) {
    EXPECT_EQ(shuffled[scalars.size() - 1 - i], scalars[i]);
  }
  for (const auto& scalar : advantages("second_group_rewards")) {
    EXPECT_EQ(scalar, 0.0);
  }
}

TEST_F(CaseH20Test, LossAndDriftAreTheListedOnes) {
  const std::vector<double> rollout = numbers(input_.at("rollout_logprobs_of_masked_positions"));
  const std::vector<double> trained = numbers(input_.at("trainer_logprobs_of_masked_positions"));
  const auto scalars = advantages("group_rewards");
  std::vector<OwnedRow> rows;
  size_t at = 0;
  for (const bj::value& sample : input_.at("samples").as_array()) {
    const size_t length =
        sample.at("tokens").as_array().size() - sample.at("prompt_len").to_number<size_t>();
    const std::string key = std::string(sample.at("name").as_string()) + "_uses_advantage_index";
    OwnedRow row;
    row.sample = static_cast<int64_t>(rows.size());
    row.mask.assign(length, 1);
    row.advantages.assign(length, *scalars[input_.at(key).to_number<size_t>()]);
    for (size_t t = 0; t < length; ++t, ++at) {
      row.logprobs.push_back(trained.at(at));
      row.old_logprobs.push_back(rollout.at(at));
    }
    rows.push_back(row);
  }
  ASSERT_EQ(at, trained.size());
  PolicyLossConfig config;
  config.eps_clip = input_.at("clip_low").to_number<double>();
  config.eps_clip_high = input_.at("clip_high").to_number<double>();
  config.aggregation.agg = LossAgg::kTokenMean;
  const auto seen = views(rows);
  const PolicyLoss loss = policy_loss(seen, config, step_totals(seen));
  EXPECT_NEAR(loss.loss(), expected_.at("loss").to_number<double>(), 1e-6);
  std::vector<double> tokens;
  for (const RowLoss& row : loss.rows) {
    tokens.insert(tokens.end(), row.token_losses.begin(), row.token_losses.end());
  }
  const std::vector<double> expected = numbers(expected_.at("token_losses"));
  ASSERT_EQ(tokens.size(), expected.size());
  double k3 = 0.0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    EXPECT_NEAR(tokens[i], expected[i], 1e-6);
    k3 += kl_estimate(KlType::kK3, trained[i] - rollout[i]).value;
  }
  EXPECT_NEAR(
      k3 / static_cast<double>(tokens.size()), expected_.at("mean_k3").to_number<double>(), 1e-6);
  const std::vector<uint8_t> mask(trained.size(), 1);
  DriftRow drift;
  drift.mask = mask;
  drift.train = Numbers(trained);
  drift.rollout = Numbers(rollout);
  EXPECT_NEAR(measure_drift(std::span(&drift, 1), {}).all.mean_abs,
              expected_.at("mean_abs_logprob_diff").to_number<double>(),
              1e-9);
}

TEST_F(CaseH20Test, AnAllEqualGroupHasAFiniteLoss) {
  OwnedRow row;
  row.mask = {1, 1};
  row.logprobs = {-0.5, -1.0};
  row.old_logprobs = {-0.7, -0.9};
  row.advantages.assign(2, *advantages("second_group_rewards")[0]);
  const std::vector<OwnedRow> rows = {row};
  const auto seen = views(rows);
  EXPECT_EQ(policy_loss(seen, {}, step_totals(seen)).loss(), 0.0);
}

}  // namespace
}  // namespace baleen::policy
