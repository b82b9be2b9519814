#include "kernels/linear/linear_cpu.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/lanes.h"
#include "kernels/linear/linear_oracle.h"

namespace baleen::kernels {
namespace {

template <class T>
std::vector<T> linear_wave(int64_t count, double phase) {
  std::vector<T> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<T>(std::sin(1.7 * static_cast<double>(i) + phase));
  }
  return values;
}

/// Rows lie apart in both arrays; what lies between them must stay.
template <class T>
void expect_dots(int64_t rows, int64_t outputs, int64_t cols) {
  const int64_t x_stride = cols + 3;
  const int64_t y_stride = outputs + 1;
  const std::vector<T> x = linear_wave<T>(rows * x_stride + 1, 0.1);
  const std::vector<T> weight = linear_wave<T>(outputs * cols, 0.4);
  std::vector<T> y(static_cast<std::size_t>(rows * y_stride), T(-7));
  linear_cpu<T>({.x = x.data(),
                 .weight = weight.data(),
                 .y = y.data(),
                 .rows = rows,
                 .outputs = outputs,
                 .cols = cols,
                 .x_stride = x_stride,
                 .y_stride = y_stride});
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < outputs; ++o) {
      EXPECT_EQ(y[static_cast<std::size_t>(r * y_stride + o)],
                dot8(weight.data() + o * cols, x.data() + r * x_stride, cols))
          << rows << " x " << outputs << " x " << cols << " at " << r << ", " << o;
    }
    EXPECT_EQ(y[static_cast<std::size_t>(r * y_stride + outputs)], T(-7));
  }
}

TEST(LinearCpuTest, EveryOutputIsTheDotOfItsRowsWhateverStandsBeside) {
  for (const int64_t rows : {0, 1, 2, 3, 31, 32, 33, 65}) {
    for (const int64_t outputs : {0, 1, 2, 3, 4, 5, 8, 11}) {
      for (const int64_t cols : {0, 1, 7, 8, 9, 64, 131}) {
        expect_dots<float>(rows, outputs, cols);
        expect_dots<double>(rows, outputs, cols);
      }
    }
  }
}

TEST(LinearCpuTest, AgainstTheOracle) {
  constexpr int64_t kCols = 136;
  const std::vector<double> x = linear_wave<double>(3 * kCols, 0.2);
  const std::vector<double> weight = linear_wave<double>(5 * kCols, 0.6);
  std::vector<double> y(15);
  linear_cpu<double>({.x = x.data(),
                      .weight = weight.data(),
                      .y = y.data(),
                      .rows = 3,
                      .outputs = 5,
                      .cols = kCols,
                      .x_stride = kCols,
                      .y_stride = 5});
  for (std::size_t r = 0; r < 3; ++r) {
    const auto expected = linear_oracle(std::span(x).subspan(r * kCols, kCols), weight, {});
    for (std::size_t o = 0; o < 5; ++o) {
      // 136 products of at most 1, each sum and product rounded once on both sides.
      EXPECT_NEAR(y[r * 5 + o], expected[o], 2 * 136 * 136 * 0x1p-53);
    }
  }
}

}  // namespace
}  // namespace baleen::kernels
