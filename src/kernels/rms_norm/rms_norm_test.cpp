#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/rms_norm/rms_norm_cpu.h"
#include "kernels/rms_norm/rms_norm_oracle.h"
#include "numerics/bfloat16.h"

namespace baleen::kernels {
namespace {

constexpr double kEps = 1e-6;

std::vector<double> wave(int64_t count, double step, double size) {
  std::vector<double> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = size * std::sin(step * static_cast<double>(i) + 0.3);
  }
  return values;
}

template <class T>
std::vector<T> cast(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

template <class T>
void expect_oracle(int64_t rows, int64_t width, bool weighted, double bound) {
  // The second row is tiny: eps then decides its scale.
  std::vector<double> x = wave(rows * width, 1.7, 2.0);
  for (int64_t i = width; i < std::min(rows, int64_t{2}) * width; ++i) {
    x[static_cast<std::size_t>(i)] *= 1e-5;
  }
  const std::vector<T> stored = cast<T>(x);
  const std::vector<T> weight = weighted ? cast<T>(wave(width, 0.9, 1.5)) : std::vector<T>();
  std::vector<T> y(stored.size(), T(NAN));
  rms_norm_cpu<T>({.x = stored.data(),
                   .weight = weighted ? weight.data() : nullptr,
                   .y = y.data(),
                   .rows = rows,
                   .width = width,
                   .eps = kEps});
  const std::vector<double> wide_weight(weight.begin(), weight.end());
  for (int64_t row = 0; row < rows; ++row) {
    const auto begin = stored.begin() + row * width;
    const std::vector<double> exact =
        rms_norm_oracle(std::vector<double>(begin, begin + width), wide_weight, kEps);
    for (int64_t i = 0; i < width; ++i) {
      const double expected = exact[static_cast<std::size_t>(i)];
      EXPECT_NEAR(
          y[static_cast<std::size_t>(row * width + i)], expected, bound * std::abs(expected))
          << "row " << row << " element " << i << " of " << width;
    }
  }
}

// A row costs (width / 8 + 3) additions of positive terms and six more roundings, so its relative
// error stays below (width / 8 + 9) units in the last place; the width is at most 136 here.
TEST(RmsNormCpuTest, AgainstTheOracle) {
  for (const int64_t width : {1, 7, 8, 9, 64, 136}) {
    for (const bool weighted : {false, true}) {
      expect_oracle<double>(3, width, weighted, 26 * 0x1p-53);
      expect_oracle<float>(3, width, weighted, 26 * 0x1p-24);
    }
  }
  expect_oracle<float>(0, 8, true, 0.0);
}

TEST(RmsNormCpuTest, RoundsTheProductWithTheWeightOnce) {
  const std::vector<float> x = cast<float>(wave(24, 1.1, 3.0));
  const std::vector<float> weight = cast<float>(wave(24, 0.4, 1.0));
  std::vector<float> exact(24);
  std::vector<float> rounded(24);
  RmsNormArgs<float> args{.x = x.data(),
                          .weight = weight.data(),
                          .y = exact.data(),
                          .rows = 1,
                          .width = 24,
                          .eps = kEps};
  rms_norm_cpu(args);
  args.y = rounded.data();
  args.rounded = true;
  rms_norm_cpu(args);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    EXPECT_EQ(rounded[i], numerics::round_to_bf16(exact[i])) << i;
  }
}

TEST(RmsNormCpuTest, StepwiseRoundsEveryStep) {
  const std::vector<double> x = wave(24, 1.1, 3.0);
  std::vector<double> y(24);
  rms_norm_stepwise_cpu<double>(
      {.x = x.data(), .y = y.data(), .rows = 1, .width = 24, .eps = kEps});
  const auto round = [](double v) { return numerics::round_to_bf16(v); };
  double sum = 0.0;  // 24 bf16 values add up exactly in double
  for (const double value : x) {
    sum += round(round(value) * round(value));
  }
  const double rho = round(1.0 / std::sqrt(round(round(sum / 24.0) + kEps)));
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(y[i], round(round(x[i]) * rho)) << i;
  }
}

}  // namespace
}  // namespace baleen::kernels
