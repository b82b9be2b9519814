#include "rl/alarms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baleen::rl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

policy::Metrics figures(double norm, double entropy, double drift) {
  return {{"rollout/kept_groups", 20.0},
          {"rollout/judged_groups", 40.0},
          {"rollout/truncated_ratio", 0.0},
          {"train/optimizer_steps", 2.0},
          {"train/grad_norm", norm},
          {"rollout/entropy", entropy},
          {"drift/mean_abs", drift}};
}

TEST(AlarmsTest, QuietRunsAreQuiet) {
  Alarms alarms;
  for (int i = 0; i < 60; ++i) {
    EXPECT_THAT(alarms.look(figures(1.0 + 0.1 * (i % 3), 0.5, 0.0)), IsEmpty()) << i;
  }
}

TEST(AlarmsTest, EachConditionHasItsSentence) {
  Alarms alarms;
  EXPECT_THAT(alarms.look(figures(1.0, 0.5, 0.06)), ElementsAre(HasSubstr("first rollout")));
  for (int i = 0; i < 19; ++i) {
    EXPECT_THAT(alarms.look(figures(1.0, 0.5, 0.06)), IsEmpty());
  }
  EXPECT_THAT(alarms.look(figures(11.0, 0.5, 0.06)), ElementsAre(HasSubstr("gradient norm 11")));
  EXPECT_THAT(alarms.look(figures(1.0, 0.09, 0.06)), ElementsAre(HasSubstr("entropy fell")));
  EXPECT_THAT(alarms.look(figures(1.0, 0.5, 0.13)), ElementsAre(HasSubstr("drift grew")));
  policy::Metrics few = figures(1.0, 0.5, 0.06);
  few[0].second = 3.0;
  few[2].second = 0.4;
  EXPECT_THAT(alarms.look(few),
              ElementsAre(HasSubstr("3 of 40 prompts"), HasSubstr("40 % of the answers")));
  few = figures(0.0, 0.0, 0.0);
  few[3].second = 0.0;
  EXPECT_THAT(alarms.look(few), ElementsAre(HasSubstr("too few prompts")));
}

}  // namespace
}  // namespace baleen::rl
