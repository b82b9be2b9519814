#include "rl/step_journal.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "base/error.h"
#include "weights/mapped_file.h"

namespace baleen::rl {
namespace {

RolloutGroup a_group(int64_t number) {
  RolloutGroup group;
  group.group = number;
  group.round = 1;
  group.prompt = {
      .number = number, .ids = {3, 9, 4}, .text = "s1=", .label = "1", .metadata = "{}"};
  for (int64_t j = 0; j < 2; ++j) {
    RolloutSample& sample = group.samples.emplace_back();
    sample.group = number;
    sample.index = 2 * number + j;
    sample.rollout_id = 7;
    sample.prompt_tokens = 3;
    sample.ids = {3, 9, 4};
    sample.append(9, -0.5F, 6);
    sample.append(1, -0.25F, 7);
    sample.mask[0] = 0;
    sample.response = "1";
    sample.reward = 0.75;
    sample.status = SampleStatus::kCompleted;
    sample.retries = 1;
    if (j == 1) {
      sample.accuracy = 1.0;
      sample.choices =
          cache::ChoiceRecords{.first_position = 0, .count = 4, .routes = {1, 2, 3}, .picks = {9}};
    }
  }
  return group;
}

RolloutBatch a_batch() {
  RolloutBatch batch;
  batch.rollout_id = 7;
  batch.groups = {a_group(3), a_group(5)};
  batch.counts.groups_judged = 9;
  batch.counts.first_reward = 0.5;
  batch.counts.filter = {{"passrate/0", 0.5}, {"passrate/1", 0.25}};
  return batch;
}

TEST(BatchCodecTest, BytesReadBackToTheSameBytes) {
  DataState data{.next_group = 12, .unfinished = {a_group(8)}};
  const std::string bytes = encode_batch(a_batch(), data);
  const DecodedBatch back = decode_batch(bytes, "test");
  EXPECT_EQ(encode_batch(back.batch, back.data), bytes);
  EXPECT_EQ(back.data.next_group, 12);
  ASSERT_EQ(back.batch.groups.size(), 2U);
  const RolloutSample& sample = back.batch.groups[1].samples[1];
  EXPECT_EQ(sample.index, 11);
  EXPECT_EQ(sample.logprobs[1], -0.25F);
  EXPECT_EQ(sample.versions[1], (VersionRun{7, 1}));
  EXPECT_EQ(sample.mask[0], 0);
  EXPECT_EQ(sample.accuracy, 1.0);
  EXPECT_EQ(sample.choices->routes.size(), 3U);
  EXPECT_FALSE(back.batch.groups[1].samples[0].choices);
}

TEST(BatchCodecTest, EveryDamageIsNamed) {
  const std::string bytes = encode_batch(a_batch(), {});
  for (std::size_t length = 0; length < bytes.size(); length += 13) {
    EXPECT_THROW(decode_batch(bytes.substr(0, length), "test"), CheckpointError) << length;
  }
  for (std::size_t at = 0; at < bytes.size(); at += 7) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    EXPECT_THROW(decode_batch(damaged, "test"), CheckpointError) << at;
  }
}

TEST(StepJournalTest, KeepsBatchesUntilACheckpoint) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / "step_journal_test";
  std::filesystem::remove_all(folder);
  const StepJournal journal(folder);
  EXPECT_FALSE(journal.load(7));
  RolloutBatch batch = a_batch();
  journal.store(batch, {.next_group = 12, .unfinished = {}});
  batch.rollout_id = 8;
  journal.store(batch, {.next_group = 20, .unfinished = {}});
  weights::write_text_file(folder / "tokens_7.log", "x");
  EXPECT_EQ(journal.load(7)->data.next_group, 12);
  journal.forget_before(8);
  EXPECT_FALSE(journal.load(7));
  EXPECT_FALSE(std::filesystem::exists(folder / "tokens_7.log"));
  EXPECT_EQ(journal.load(8)->data.next_group, 20);
}

}  // namespace
}  // namespace baleen::rl
