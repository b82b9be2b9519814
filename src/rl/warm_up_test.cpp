// What policy updates begin with.
#include "rl/warm_up.h"

#include <filesystem>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "base/error.h"
#include "rl/rl_run.h"
#include "train/optimizer.h"
#include "train/schedule.h"

namespace baleen::rl {
namespace {

RlConfig without_warm_up() {
  RlConfig config = default_rl_config("sort", "dapo");
  config.sft_steps = 0;
  config.num_rollout = 3;
  settle(config);
  return config;
}

TEST(PolicyStartTest, ByDefaultAdamWStepsAtOneRateBehindTheWarmUp) {
  const PolicyStart start = policy_start(without_warm_up());
  EXPECT_EQ(start.trainer.optimizer.kind, train::OptimizerKind::kAdamW);
  EXPECT_EQ(start.trainer.optimizer.weight_decay, 0.0);
  EXPECT_EQ(start.trainer.clip_norm, 1.0);
  EXPECT_DOUBLE_EQ(train::learning_rate(start.trainer.schedule, 0), 3e-5);
  for (const int64_t step : {9, 10, 1000}) {
    EXPECT_EQ(train::learning_rate(start.trainer.schedule, step), 3e-4) << step;
  }
}

TEST(PolicyStartTest, TheOptionsReachOptimizerScheduleAndClipping) {
  RlConfig config = without_warm_up();
  config.optimizer = "muon";
  config.weight_decay = 0.05;
  config.muon_momentum = 0.8;
  config.muon_scale = 0.25;
  config.clip_grad = 0.5;
  config.lr = 1e-3;
  config.min_lr = 1e-4;
  config.lr_warmup_steps = 2;
  config.lr_decay_style = "linear";
  PolicyStart start = policy_start(config);
  EXPECT_EQ(start.trainer.optimizer.weight_decay, 0.05);
  EXPECT_EQ(start.trainer.optimizer.muon_momentum, 0.8);
  EXPECT_EQ(start.trainer.optimizer.muon_scale, 0.25);
  EXPECT_EQ(start.trainer.clip_norm, 0.5);
  // Three rollouts of two steps: two of warm-up, then four down to the end.
  EXPECT_DOUBLE_EQ(train::learning_rate(start.trainer.schedule, 1), 1e-3);
  EXPECT_DOUBLE_EQ(train::learning_rate(start.trainer.schedule, 4), 0.5 * (1e-3 + 1e-4));
  EXPECT_DOUBLE_EQ(train::learning_rate(start.trainer.schedule, 6), 1e-4);
  std::set<std::string> kinds;
  for (const train::Optimizer::State& state : start.single_rank()->trainer().optimizer().states()) {
    kinds.insert(state.kind);
  }
  EXPECT_EQ(kinds, (std::set<std::string>{"m", "momentum", "v"}));
}

TEST(WarmUpTest, AVerifierThatDoesNotWorkIsToldBefore) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / "a_verifier_that_does_not_work";
  std::filesystem::remove_all(folder);
  RlConfig config = default_rl_config("sort", "dapo");
  config.sft_steps = 2;
  config.out = folder.string();
  settle(config);
  const auto expect_refusal = [&] {
    EXPECT_THROW(run_rl(config, {}, {}), Error);
    EXPECT_FALSE(std::filesystem::exists(folder / "sft"));
  };
  config.rm_type = "external";
  config.rm_command = {"false"};
  expect_refusal();
  config.rm_type = "exact";
  config.eval_rm_type = "no such one";
  expect_refusal();
}

}  // namespace
}  // namespace baleen::rl
