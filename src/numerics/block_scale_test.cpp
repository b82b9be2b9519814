#include "numerics/block_scale.h"

#include <array>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace baleen::numerics {
namespace {

TEST(BlockScaleTest, ScalesOfTheContract) {
  EXPECT_EQ(q8_scale(448.0F), 1.0F);
  EXPECT_EQ(q8_scale(224.0F), 0.5F);
  EXPECT_EQ(q8_scale(3.5F), 0x1p-7F);
  EXPECT_EQ(q8_scale(1.75F), 0x1p-8F);
  EXPECT_EQ(q8_scale(1.0F), 0x1p-8F);
  EXPECT_EQ(q8_scale(1e-4F), 0x1p-22F);
  EXPECT_EQ(q8_scale(0.0F), 0x1p-22F);
  EXPECT_EQ(q8_scale(449.0F), 2.0F);
  EXPECT_EQ(q4_scale(6.0F), 1.0F);
  EXPECT_EQ(q4_scale(3.0F), 0.5F);
  EXPECT_EQ(q4_scale(1.5F), 0.25F);
  EXPECT_EQ(q4_scale(1.0F), 0.25F);
  EXPECT_EQ(q4_scale(0.75F), 0.125F);
  EXPECT_EQ(q4_scale(7.0F), 2.0F);
  EXPECT_EQ(q4_scale(0.0F), 0x1p-126F);
}

template <class T>
class BlockScaleTyped : public testing::Test {};
using StorageTypes = testing::Types<float, double>;
TYPED_TEST_SUITE(BlockScaleTyped, StorageTypes);

TYPED_TEST(BlockScaleTyped, WorkedExampleOfFp8) {
  using T = TypeParam;
  const std::vector<T> row = {
      T(1), T(-0.30078125), T(0.010009765625), T(0.000499725341796875), T(1.703125)};
  std::vector<uint8_t> codes(row.size());
  std::vector<uint8_t> scales(1);
  quantize_q8(std::span<const T>(row), 128, codes, scales);
  EXPECT_EQ(ue8m0_to_float(scales[0]), 0x1p-8F);
  const std::array<float, 5> code_values = {256.0F, -80.0F, 2.5F, 0.125F, 448.0F};
  const std::array<double, 5> simulated = {1.0, -0.3125, 0.009765625, 0.00048828125, 1.75};
  std::vector<T> copy = row;
  simulate_s8(std::span<T>(copy), 64);
  for (std::size_t i = 0; i < row.size(); ++i) {
    EXPECT_EQ(e4m3_to_float(codes[i]), code_values[i]);
    EXPECT_EQ(static_cast<double>(copy[i]), simulated[i]);
  }
}

TYPED_TEST(BlockScaleTyped, WorkedExampleOfFp4) {
  using T = TypeParam;
  std::vector<T> row = {
      T(1), T(-0.30078125), T(0.10009765625), T(0.050048828125), T(2.5), T(-4.90625)};
  simulate_s4(std::span<T>(row), 32);
  const std::vector<T> expected = {T(1), T(-0.5), T(0), T(0), T(2), T(-4)};
  EXPECT_EQ(row, expected);
}

TYPED_TEST(BlockScaleTyped, BlocksAreIndependentAndTheLastMayBeShort) {
  using T = TypeParam;
  for (const int64_t block : {64, 128}) {
    for (const int64_t width : {block - 1, block, block + 1, 3 * block - 5}) {
      std::vector<T> row(static_cast<std::size_t>(width));
      for (std::size_t i = 0; i < row.size(); ++i) {
        row[i] = static_cast<T>(std::sin(static_cast<double>(i)) * std::pow(4.0, double(i / 64)));
      }
      std::vector<uint8_t> codes(row.size());
      std::vector<uint8_t> scales(static_cast<std::size_t>(ceil_div(width, block)));
      quantize_q8(std::span<const T>(row), block, codes, scales);
      std::vector<T> simulated = row;
      simulate_s8(std::span<T>(simulated), block);
      for (std::size_t i = 0; i < row.size(); ++i) {
        const float scale = ue8m0_to_float(scales[i / static_cast<std::size_t>(block)]);
        EXPECT_EQ(static_cast<double>(simulated[i]),
                  static_cast<double>(e4m3_to_float(codes[i]) * scale));
        // Half a step: 2^-4 relative for normal codes, 2^-10 scales below them.
        const double bound = std::max(std::abs(static_cast<double>(row[i])) * 0x1p-4,
                                      static_cast<double>(scale) * 0x1p-10);
        EXPECT_LE(std::abs(static_cast<double>(simulated[i] - row[i])), bound);
      }
      std::vector<T> again = simulated;
      simulate_s8(std::span<T>(again), block);
      EXPECT_EQ(again, simulated) << "simulating twice changes nothing here";
    }
  }
}

TYPED_TEST(BlockScaleTyped, SmallBlocksUseTheFloorOfTheScale) {
  using T = TypeParam;
  std::vector<T> row(64, T(1e-7));
  row[1] = T(0);
  std::vector<uint8_t> codes(64);
  std::vector<uint8_t> scales(1);
  quantize_q8(std::span<const T>(row), 64, codes, scales);
  EXPECT_EQ(ue8m0_to_float(scales[0]), 0x1p-22F);
  EXPECT_EQ(codes[1], 0);
  EXPECT_EQ(e4m3_to_float(codes[0]), 0.40625F);  // 1e-7 * 2^22 = 0.4194 in steps of 2^-5
}

TEST(BlockScaleTest, ANanStaysAloneInItsBlock) {
  std::vector<float> row = {1.0F, NAN, 2.0F};
  simulate_s8(std::span<float>(row), 64);
  EXPECT_EQ(row[0], 1.0F);
  EXPECT_TRUE(std::isnan(row[1]));
  EXPECT_EQ(row[2], 2.0F);
}

}  // namespace
}  // namespace baleen::numerics
