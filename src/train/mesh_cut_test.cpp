// The cut of a step over data ranks and micro-batches, for random lengths.
#include "train/mesh_cut.h"

#include <algorithm>
#include <random>
#include <set>

#include <gtest/gtest.h>

namespace baleen::train {
namespace {

std::vector<Sample> samples_of_lengths(const std::vector<int64_t>& fed) {
  std::vector<Sample> samples;
  for (const int64_t tokens : fed) {
    const auto count = static_cast<std::size_t>(tokens) + 1;  // the last is a target alone
    samples.push_back({.number = static_cast<int64_t>(samples.size()),
                       .ids = std::vector<int32_t>(count, 7),
                       .weights = std::vector<float>(count, 1.0F)});
  }
  return samples;
}

int64_t tokens_of(const std::vector<Sample>& batch) {
  int64_t tokens = 0;
  for (const Sample& sample : batch) {
    tokens += sample.fed_tokens();
  }
  return tokens;
}

TEST(MeshCutTest, EverySampleOnceAndNoMicroBatchAboveTheLimit) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(round);
    std::vector<int64_t> lengths;
    const int count = std::uniform_int_distribution<int>(1, 40)(random);
    for (int i = 0; i < count; ++i) {
      lengths.push_back(std::uniform_int_distribution<int64_t>(1, i % 5 == 0 ? 60 : 12)(random));
    }
    const std::vector<Sample> samples = samples_of_lengths(lengths);
    const int64_t ranks = std::uniform_int_distribution<int64_t>(1, 5)(random);
    CutOptions options;
    options.max_tokens = round % 4 == 0 ? 0 : std::uniform_int_distribution<int64_t>(8, 80)(random);
    options.least_batches = std::uniform_int_distribution<int64_t>(1, 3)(random);
    options.multiple = std::uniform_int_distribution<int64_t>(1, 3)(random);
    const auto cut = cut_over_ranks(samples, ranks, options);
    ASSERT_EQ(cut.size(), static_cast<std::size_t>(ranks));
    std::multiset<int64_t> seen;
    int64_t lightest = tokens_of(samples);
    for (const auto& batches : cut) {
      EXPECT_EQ(batches.size(), cut.front().size());
      EXPECT_EQ(static_cast<int64_t>(batches.size()) % options.multiple, 0);
      for (const std::vector<Sample>& batch : batches) {
        lightest = std::min(lightest, tokens_of(batch));
        for (const Sample& sample : batch) {
          seen.insert(sample.number);
        }
      }
    }
    EXPECT_EQ(seen.size(), samples.size());
    EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), samples.size());
    for (const auto& batches : cut) {
      for (const std::vector<Sample>& batch : batches) {
        if (options.max_tokens > 0 && batch.size() > 1) {
          EXPECT_LE(tokens_of(batch), options.max_tokens);
        }
        if (!batch.empty()) {  // it was the lightest when its last sample came
          EXPECT_LE(tokens_of(batch) - batch.back().fed_tokens(), lightest);
        }
      }
    }
  }
}

TEST(MeshCutTest, MicroBatchesAreAsFewAsTheLimitAllows) {
  const auto batches = [](const std::vector<int64_t>& lengths, int64_t ranks, int64_t max_tokens) {
    CutOptions options;
    options.max_tokens = max_tokens;
    return cut_over_ranks(samples_of_lengths(lengths), ranks, options).front().size();
  };
  EXPECT_EQ(batches({10, 10, 10, 10}, 1, 40), 1U);
  EXPECT_EQ(batches({10, 10, 10, 10}, 1, 39), 2U);
  EXPECT_EQ(batches({10, 10, 10, 10}, 2, 20), 1U);
  EXPECT_EQ(batches({10, 10, 10, 10}, 2, 19), 2U);
  // A sample above the limit goes alone.
  EXPECT_EQ(batches({50, 10, 10}, 1, 20), 2U);
  EXPECT_EQ(batches({50}, 3, 20), 1U);
}

}  // namespace
}  // namespace baleen::train
