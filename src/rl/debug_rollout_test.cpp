// Rollouts as column files: every field comes back where the header says.

#include "rl/debug_rollout.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "policy/column_file.h"

namespace baleen::rl {
namespace {

using testing::ElementsAre;

TEST(DebugRolloutTest, EveryFieldIsWhereTheHeaderSays) {
  RolloutBatch batch;
  batch.rollout_id = 12;
  RolloutGroup& group = batch.groups.emplace_back();
  group.prompt.text = "2+2=";
  group.prompt.label = "4";
  for (int i = 0; i < 2; ++i) {
    RolloutSample& sample = group.samples.emplace_back();
    sample.group = 3;
    sample.index = 24 + i;
    sample.prompt_tokens = 2;
    sample.ids = {7, 8};
    for (int t = 0; t <= i; ++t) {
      sample.append(100 + t, -0.5F * static_cast<float>(t + 1), 4 + t);
    }
    sample.reward = i;
    sample.status = i == 0 ? SampleStatus::kCompleted : SampleStatus::kTruncated;
    sample.response = i == 0 ? "4" : "5\n";
  }
  group.samples[1].accuracy = 0.5;
  group.samples[1].remove_sample = true;
  group.samples[1].choices.emplace();
  group.samples[1].choices->routes = {1, 2, 3};
  const auto folder = std::filesystem::path(testing::TempDir()) / "debug_rollout" / "deep";
  std::filesystem::remove_all(folder);
  save_debug_rollout(folder, batch);
  const policy::ColumnFile file(folder / "12.bin");
  EXPECT_EQ(file.rows(), 2);
  EXPECT_THAT(file.column<int64_t>("sample"), ElementsAre(24, 25));
  EXPECT_THAT(file.column<int64_t>("group"), ElementsAre(3, 3));
  EXPECT_THAT(file.column<int32_t>("prompt_tokens"), ElementsAre(2, 2));
  EXPECT_THAT(file.column<double>("reward"), ElementsAre(0.0, 1.0));
  EXPECT_TRUE(std::isnan(file.column<double>("accuracy")[0]));
  EXPECT_EQ(file.column<double>("accuracy")[1], 0.5);
  EXPECT_THAT(file.column<uint8_t>("status"),
              ElementsAre(static_cast<int>(SampleStatus::kCompleted),
                          static_cast<int>(SampleStatus::kTruncated)));
  EXPECT_THAT(file.column<uint8_t>("removed"), ElementsAre(0, 1));
  EXPECT_THAT(file.column<int64_t>("token_begin"), ElementsAre(0, 3, 7));
  EXPECT_THAT(file.column<int32_t>("tokens"), ElementsAre(7, 8, 100, 7, 8, 100, 101));
  EXPECT_THAT(file.column<int64_t>("response_begin"), ElementsAre(0, 1, 3));
  EXPECT_THAT(file.column<float>("logprobs"), ElementsAre(-0.5F, -0.5F, -1.0F));
  EXPECT_EQ(file.column<uint8_t>("mask").size(), 3U);
  EXPECT_THAT(file.column<int64_t>("version_begin"), ElementsAre(0, 1, 3));
  EXPECT_THAT(file.column<int64_t>("versions"), ElementsAre(4, 1, 4, 1, 5, 1));
  EXPECT_THAT(file.column<int64_t>("route_begin"), ElementsAre(0, 0, 3));
  EXPECT_THAT(file.column<uint8_t>("routes"), ElementsAre(1, 2, 3));
  EXPECT_THAT(file.column<int64_t>("pick_begin"), ElementsAre(0, 0, 0));
  EXPECT_EQ(file.text("texts"),
            R"([{"prompt":"2+2=","label":"4","response":"4"},)"
            R"({"prompt":"2+2=","label":"4","response":"5\n"}])");
  EXPECT_THROW(save_debug_rollout("/proc/no/such", batch), SystemError);

  const RolloutBatch again = load_debug_rollout(folder, 12);
  ASSERT_EQ(again.groups.size(), 1U);
  EXPECT_EQ(again.counts.first_reward, 0.5);
  EXPECT_EQ(again.groups[0].prompt.label, "4");
  EXPECT_THAT(again.groups[0].prompt.ids, ElementsAre(7, 8));
  for (std::size_t i = 0; i < 2; ++i) {
    const RolloutSample& saved = group.samples[i];
    const RolloutSample& read = again.groups[0].samples.at(i);
    EXPECT_EQ(read.index, saved.index);
    EXPECT_EQ(read.ids, saved.ids);
    EXPECT_EQ(read.logprobs, saved.logprobs);
    EXPECT_EQ(read.mask, saved.mask);
    EXPECT_EQ(read.versions, saved.versions);
    EXPECT_EQ(read.accuracy, saved.accuracy);
    EXPECT_EQ(read.status, saved.status);
    EXPECT_EQ(read.remove_sample, saved.remove_sample);
    EXPECT_EQ(read.choices, saved.choices);
    EXPECT_EQ(read.response, saved.response);
  }
  EXPECT_THROW(load_debug_rollout(folder, 13), Error);
}

}  // namespace
}  // namespace baleen::rl
