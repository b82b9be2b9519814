#include "kernels/lanes.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace baleen::kernels {
namespace {

template <class T>
std::vector<T> wave(std::size_t count, double phase) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<T>(std::sin(1.7 * static_cast<double>(i) + phase));
  }
  return values;
}

TEST(LanesTest, OrderIsEightPartialSumsAndABalancedFold) {
  for (const std::size_t count : {0U, 1U, 7U, 8U, 9U, 64U, 131U}) {
    const auto a = wave<float>(count, 0.1);
    const auto b = wave<float>(count, 0.7);
    float lane[8] = {};
    for (std::size_t i = 0; i < count; ++i) {
      lane[i % 8] += a[i] * b[i];
    }
    const float expected =
        ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
    EXPECT_EQ(dot8(a.data(), b.data(), static_cast<int64_t>(count)), expected) << count;
  }
}

TEST(LanesTest, ARowDoesNotDependOnItsNeighbours) {
  for (const int64_t cols : {1, 8, 13, 100}) {
    for (const int64_t rows : {1, 2, 3, 4, 5, 7, 16, 64}) {
      const auto weight = wave<double>(static_cast<std::size_t>(rows * cols), 0.2);
      const auto x = wave<double>(static_cast<std::size_t>(cols), 0.5);
      std::vector<double> y(static_cast<std::size_t>(rows));
      multiply_rows(weight.data(), x.data(), y.data(), rows, cols);
      for (int64_t r = 0; r < rows; ++r) {
        EXPECT_EQ(y[static_cast<std::size_t>(r)], dot8(weight.data() + r * cols, x.data(), cols));
      }
    }
  }
}

template <class T>
void expect_listed_rows(int64_t rows, int64_t cols) {
  // Every second row of a larger array, last row first.
  const auto all = wave<T>(static_cast<std::size_t>(2 * rows * cols), 0.3);
  const auto x = wave<T>(static_cast<std::size_t>(cols), 0.8);
  const auto weights = wave<T>(static_cast<std::size_t>(rows), 0.6);
  std::vector<const T*> listed;
  for (int64_t r = rows - 1; r >= 0; --r) {
    listed.push_back(all.data() + 2 * r * cols);
  }
  std::vector<T> y(static_cast<std::size_t>(rows));
  multiply_listed_rows(listed.data(), x.data(), y.data(), rows, cols);
  std::vector<T> sum(static_cast<std::size_t>(cols), T(-7));
  sum_listed_rows(listed.data(), weights.data(), sum.data(), rows, cols);
  for (std::size_t r = 0; r < listed.size(); ++r) {
    EXPECT_EQ(y[r], dot8(listed[r], x.data(), cols)) << r << " of " << rows << " x " << cols;
  }
  for (std::size_t i = 0; i < sum.size(); ++i) {
    T expected = 0;
    for (std::size_t r = 0; r < listed.size(); ++r) {
      expected += weights[r] * listed[r][i];
    }
    EXPECT_EQ(sum[i], expected) << i << " of " << rows << " x " << cols;
  }
}

TEST(LanesTest, RowsOfAListAreMultipliedAndSummedInListOrder) {
  for (const int64_t rows : {0, 1, 3, 4, 5, 8, 9}) {
    for (const int64_t cols : {0, 1, 8, 15, 16, 17, 33, 100}) {
      expect_listed_rows<float>(rows, cols);
      expect_listed_rows<double>(rows, cols);
    }
  }
}

}  // namespace
}  // namespace baleen::kernels
