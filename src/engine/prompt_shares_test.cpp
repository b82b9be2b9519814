#include "engine/prompt_shares.h"

#include <numeric>
#include <random>

#include <gtest/gtest.h>

namespace baleen::engine {
namespace {

std::vector<int32_t> divided(const std::vector<int32_t>& wants, int32_t budget) {
  PromptShares shares;
  const auto out = shares.divide(wants, budget);
  return {out.begin(), out.end()};
}

TEST(PromptSharesTest, AShortPromptEndsBesideAGiantOne) {
  EXPECT_EQ(divided({512, 100}, 512), (std::vector<int32_t>{412, 100}));
  EXPECT_EQ(divided({512, 512, 40}, 512), (std::vector<int32_t>{236, 236, 40}));
  EXPECT_EQ(divided({512}, 2048), (std::vector<int32_t>{512}));
  EXPECT_EQ(divided({}, 10), (std::vector<int32_t>{}));
}

TEST(PromptSharesTest, OddTokensGoToTheFirst) {
  EXPECT_EQ(divided({9, 9, 9}, 10), (std::vector<int32_t>{4, 3, 3}));
  EXPECT_EQ(divided({9, 9, 9}, 2), (std::vector<int32_t>{1, 1, 0}));
  EXPECT_EQ(divided({9, 9, 9}, 0), (std::vector<int32_t>{0, 0, 0}));
  EXPECT_EQ(divided({9, 9, 9}, -5), (std::vector<int32_t>{0, 0, 0}));
}

TEST(PromptSharesTest, NothingIsWastedAndNobodyIsRobbed) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::vector<int32_t> wants(random() % 9);
    for (int32_t& want : wants) {
      want = static_cast<int32_t>(random() % 40);
    }
    const auto budget = static_cast<int32_t>(random() % 150);
    const std::vector<int32_t> shares = divided(wants, budget);
    int32_t total = 0;
    int32_t least_cut = budget + 1;  // smallest share of one that wanted more
    int32_t most = 0;
    for (size_t i = 0; i < wants.size(); ++i) {
      ASSERT_GE(shares[i], 0);
      ASSERT_LE(shares[i], wants[i]);
      total += shares[i];
      most = std::max(most, shares[i]);
      if (shares[i] < wants[i]) {
        least_cut = std::min(least_cut, shares[i]);
      }
    }
    ASSERT_EQ(total, std::min(budget, std::accumulate(wants.begin(), wants.end(), 0)));
    ASSERT_LE(most - 1, least_cut) << "someone was cut although another has more";
  }
}

}  // namespace
}  // namespace baleen::engine
