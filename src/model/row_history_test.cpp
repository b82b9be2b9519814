#include "model/row_history.h"

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace baleen::model {
namespace {

constexpr int64_t kWidth = 3;

/// Row of a position in a given writing of it, so that a stale row shows.
at::Tensor rows_of(int64_t first, int64_t last, double version) {
  const at::Tensor position = at::arange(first, last, at::kDouble).unsqueeze(1);
  return (position * 1000.0 + version).expand({last - first, kWidth}).clone();
}

double element(const at::Tensor& rows, int64_t row) {
  return rows[row][0].item<double>();
}

TEST(RowHistoryTest, GivesBackWhatWasAppended) {
  RowHistory history(kWidth, 4, at::TensorOptions(at::kDouble), true);
  history.append(rows_of(0, 3, 1));
  EXPECT_EQ(history.begin(), 0);
  EXPECT_EQ(history.end(), 3);
  EXPECT_TRUE(at::equal(history.view(1, 3), rows_of(1, 3, 1)));
  EXPECT_EQ(history.view(2, 2).size(0), 0);
}

TEST(RowHistoryTest, KeepsTheLastRowsWhateverTheChunks) {
  std::mt19937 random(1);
  for (const int64_t keep : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{128}}) {
    RowHistory history(kWidth, keep, at::TensorOptions(at::kDouble), true);
    std::vector<double> naive;
    double version = 0;
    for (int step = 0; step < 400; ++step) {
      version += 0.001;
      const int64_t reach = std::min<int64_t>(keep, history.end());
      if (step % 5 == 4 && reach > 0) {  // take back less than is kept
        const int64_t back = std::uniform_int_distribution<int64_t>(0, reach / 2)(random);
        const int64_t end = std::max(history.begin(), history.end() - back);
        history.truncate(end);
        naive.resize(static_cast<std::size_t>(end));
      }
      const int64_t count =
          step % 50 == 49 ? 300 : std::uniform_int_distribution<int64_t>(1, 5)(random);
      const int64_t first = history.end();
      history.append(rows_of(first, first + count, version));
      for (int64_t i = first; i < first + count; ++i) {
        naive.push_back(static_cast<double>(i) * 1000.0 + version);
      }
      ASSERT_EQ(history.end(), static_cast<int64_t>(naive.size()));
      const int64_t from = std::max<int64_t>(history.begin(), first - keep / 2);
      const at::Tensor seen = history.view(from, history.end());
      for (int64_t i = from; i < history.end(); ++i) {
        ASSERT_EQ(element(seen, i - from), naive[static_cast<std::size_t>(i)]) << i;
      }
    }
  }
}

TEST(RowHistoryTest, KeepsEverythingWhenAsked) {
  RowHistory history(kWidth, RowHistory::kKeepAll, at::TensorOptions(at::kDouble), true);
  for (int64_t i = 0; i < 1000; ++i) {
    history.append(rows_of(i, i + 1, 1));
  }
  EXPECT_EQ(history.begin(), 0);
  EXPECT_TRUE(at::equal(history.view(0, 1000), rows_of(0, 1000, 1)));
}

TEST(RowHistoryTest, ALongChunkDoesNotGrowTheBufferForGood) {
  RowHistory history(kWidth, 8, at::TensorOptions(at::kDouble), false);
  const int64_t usual = history.bytes();
  history.append(rows_of(0, 500, 1));
  EXPECT_GT(history.bytes(), usual);
  history.append(rows_of(500, 501, 1));
  EXPECT_EQ(history.bytes(), usual);
  EXPECT_TRUE(at::equal(history.view(492, 501), rows_of(492, 501, 1)));
}

TEST(RowHistoryTest, PaintsRowsThatWereTakenBack) {
  RowHistory history(kWidth, 4, at::TensorOptions(at::kDouble), true);
  history.append(rows_of(0, 4, 1));
  const at::Tensor memory = history.view(0, 4);
  history.truncate(2);
  EXPECT_TRUE(std::isnan(element(memory, 2)));
  EXPECT_EQ(element(memory, 1), 1001.0);
}

TEST(RowHistoryTest, ACopySharesNoMemory) {
  RowHistory history(kWidth, 4, at::TensorOptions(at::kDouble), true);
  history.append(rows_of(0, 2, 1));
  const std::unique_ptr<RowStore> copy_owner = history.clone();
  RowStore& copy = *copy_owner;
  history.truncate(1);
  history.append(rows_of(1, 2, 2));
  EXPECT_TRUE(at::equal(copy.view(0, 2), rows_of(0, 2, 1)));
}

TEST(RowHistoryTest, StartsAgainAtAnyPosition) {
  RowHistory history(kWidth, 4, at::TensorOptions(at::kDouble), true);
  history.append(rows_of(0, 9, 1));
  history.restart(40);
  EXPECT_EQ(history.begin(), 40);
  history.append(rows_of(40, 41, 2));
  EXPECT_TRUE(at::equal(history.view(40, 41), rows_of(40, 41, 2)));
}

TEST(RowHistoryDeathTest, RefusesRowsThatAreGone) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  RowHistory history(kWidth, 4, at::TensorOptions(at::kDouble), false);
  for (int64_t i = 0; i < 40; ++i) {
    history.append(rows_of(i, i + 1, 1));
  }
  EXPECT_DEATH(history.view(0, 40), "history that holds");
  EXPECT_DEATH(history.truncate(0), "before the first row");
}

}  // namespace
}  // namespace baleen::model
