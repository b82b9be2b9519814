#include "numerics/hadamard.h"

#include <bit>
#include <vector>

#include <gtest/gtest.h>

namespace baleen::numerics {
namespace {

TEST(HadamardTest, UnitVectorsGiveTheRowsOfTheSylvesterMatrix) {
  for (std::size_t width = 1; width <= 256; width *= 2) {
    for (std::size_t unit = 0; unit < width; ++unit) {
      std::vector<double> row(width, 0.0);
      row[unit] = 1.0;
      hadamard(std::span<double>(row));
      for (std::size_t i = 0; i < width; ++i) {
        const double sign = std::popcount(i & unit) % 2 == 0 ? 1.0 : -1.0;
        EXPECT_EQ(row[i], sign * (1.0 / std::sqrt(static_cast<double>(width))));
      }
    }
  }
}

TEST(HadamardTest, KnownValuesOfARamp) {
  std::vector<double> row(128);
  for (std::size_t i = 0; i < row.size(); ++i) {
    row[i] = static_cast<double>(i);
  }
  std::vector<float> single(row.begin(), row.end());
  hadamard(std::span<double>(row));
  EXPECT_NEAR(row[0], 718.42049, 1e-5);
  EXPECT_NEAR(row[1], -5.6568543, 1e-7);
  EXPECT_NEAR(row[2], -11.313709, 1e-6);
  EXPECT_EQ(row[3], 0.0);
  EXPECT_NEAR(row[4], -22.627417, 1e-6);
  EXPECT_NEAR(row[64], -362.03867, 1e-5);
  hadamard(std::span<float>(single));
  for (std::size_t i = 0; i < row.size(); ++i) {
    // The sums are small integers, exact in float: only the factor and the product round.
    EXPECT_NEAR(static_cast<double>(single[i]), row[i], std::abs(row[i]) * 0x1p-22);
  }
}

TEST(HadamardTest, TwiceIsTheIdentity) {
  std::vector<double> row(64);
  for (std::size_t i = 0; i < row.size(); ++i) {
    row[i] = std::sin(static_cast<double>(i * i));
  }
  std::vector<double> twice = row;
  hadamard(std::span<double>(twice));
  hadamard(std::span<double>(twice));
  for (std::size_t i = 0; i < row.size(); ++i) {
    EXPECT_NEAR(twice[i], row[i], 1e-15);
  }
}

TEST(HadamardDeathTest, RefusesOtherWidths) {
  std::vector<float> row(12);
  EXPECT_DEATH(hadamard(std::span<float>(row)), "width=12");
}

}  // namespace
}  // namespace baleen::numerics
