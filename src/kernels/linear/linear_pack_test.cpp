#include "kernels/linear/linear_pack.h"

#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/linear/linear_layout.h"

namespace baleen::kernels {
namespace {

// What the tensor cores read: 16-byte chunk c of row r lies at chunk c xor (r mod 8).
TEST(LinearLayoutTest, SwizzleKnownAnswers) {
  EXPECT_EQ(swizzled_tile_offset(0, 0), 0);
  EXPECT_EQ(swizzled_tile_offset(0, 127), 127);
  EXPECT_EQ(swizzled_tile_offset(1, 0), 128 + 16);
  EXPECT_EQ(swizzled_tile_offset(1, 16), 128);
  EXPECT_EQ(swizzled_tile_offset(7, 0), 7 * 128 + 7 * 16);
  EXPECT_EQ(swizzled_tile_offset(8, 5), 8 * 128 + 5);
  EXPECT_EQ(swizzled_tile_offset(63, 127), 63 * 128 + 15);
}

// A lane of a bf16 operand in registers holds, of 16 inputs, 2q, 2q + 1, 2q + 8 and 2q + 9.
TEST(LinearLayoutTest, FragmentKnownAnswers) {
  EXPECT_EQ(fragment_tile_offset(0, 0), 0);
  EXPECT_EQ(fragment_tile_offset(0, 8), 1);
  EXPECT_EQ(fragment_tile_offset(0, 1), 2);
  EXPECT_EQ(fragment_tile_offset(0, 9), 3);
  EXPECT_EQ(fragment_tile_offset(8, 0), 4);
  EXPECT_EQ(fragment_tile_offset(0, 16), 8);
  EXPECT_EQ(fragment_tile_offset(0, 2), 16);
  EXPECT_EQ(fragment_tile_offset(1, 0), 64);
  EXPECT_EQ(fragment_tile_offset(0, 32), 512);
  EXPECT_EQ(fragment_tile_offset(16, 0), 2048);
}

TEST(LinearLayoutTest, EveryByteHasItsOwnPlace) {
  for (const TileOrder order : {TileOrder::kRows, TileOrder::kFragments}) {
    std::set<int64_t> places;
    for (int64_t row = 0; row < 128; ++row) {
      for (int64_t byte = 0; byte < 256; ++byte) {
        const int64_t at = packed_weight_offset(order, row, byte, 2);
        EXPECT_TRUE(at >= 0 && at < 128 * 256);
        places.insert(at);
      }
    }
    EXPECT_EQ(places.size(), 128U * 256U);
  }
  // Tiles along the inputs follow each other, then the next 64 rows.
  EXPECT_EQ(packed_weight_offset(TileOrder::kRows, 0, 128, 2), kTileBytes);
  EXPECT_EQ(packed_weight_offset(TileOrder::kRows, 64, 0, 2), 2 * kTileBytes);
  // Past 2^31 bytes.
  EXPECT_EQ(packed_weight_offset(TileOrder::kRows, 64 * 70'000, 0, 8), int64_t{70'000} * 8 * 8192);
}

TEST(LinearPackTest, KeepsEveryByteAndFillsRowsWithZero) {
  const WeightShape shape{65, 128, WeightFormat::kBf16};
  std::vector<uint8_t> weight(65 * 256);
  for (std::size_t i = 0; i < weight.size(); ++i) {
    weight[i] = static_cast<uint8_t>(1 + i % 251);
  }
  ASSERT_EQ(packed_weight_bytes(shape), 128 * 256);
  std::vector<uint8_t> packed(128 * 256, 0xAA);
  pack_weight(shape, weight, packed);
  std::size_t zeros = 0;
  for (const uint8_t byte : packed) {
    zeros += byte == 0 ? 1 : 0;
  }
  EXPECT_EQ(zeros, 63U * 256U);
  for (int64_t row = 0; row < 65; ++row) {
    for (int64_t byte = 0; byte < 256; ++byte) {
      EXPECT_EQ(
          packed[static_cast<std::size_t>(packed_weight_offset(TileOrder::kRows, row, byte, 2))],
          weight[static_cast<std::size_t>(row * 256 + byte)]);
    }
  }
  EXPECT_EQ(packed_weight_bytes({65, 128, WeightFormat::kE4m3AsBf16}), 128 * 128);
}

TEST(LinearPackDeathTest, WrongSizesAreRefused) {
  std::vector<uint8_t> weight(64 * 128);
  std::vector<uint8_t> packed(64 * 128 - 1);
  EXPECT_DEATH(pack_weight({64, 128, WeightFormat::kE4m3}, weight, packed), "packed=8191");
  EXPECT_DEATH(packed_weight_bytes({64, 100, WeightFormat::kE4m3}), "cols=100");
}

}  // namespace
}  // namespace baleen::kernels
