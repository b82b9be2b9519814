#include "numerics/weight_format.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "numerics/philox.h"

namespace baleen::numerics {
namespace {

std::vector<float> random_matrix(int64_t count, uint32_t stream) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const PhiloxBlock random = philox4x32_10({{static_cast<uint32_t>(i), 0, 0, 0}}, {{7, stream}});
    values[i] = normal_pair(random.words[0], random.words[1]).first * 0.05F;
  }
  return values;
}

TEST(WeightFormatTest, DecodesTheExampleByte) {
  std::vector<uint8_t> packed(16, 0);
  packed[3] = 0x2B;
  const std::vector<uint8_t> scales = {0x7D};
  std::vector<float> values(32);
  dequantize_groups_fp4(packed, scales, 1, 32, std::span<float>(values));
  EXPECT_EQ(values[6], -0.375F);
  EXPECT_EQ(values[7], 0.25F);
}

TEST(WeightFormatTest, TilesAtTheBorderArePartial) {
  for (const auto& [rows, cols] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {127, 129}, {128, 128}, {129, 127}, {256, 384}, {40, 200}}) {
    const TileShape shape{rows, cols};
    EXPECT_EQ(shape.scale_rows(), (rows + 127) / 128);
    const std::vector<float> weight = random_matrix(rows * cols, 1);
    std::vector<uint8_t> codes(weight.size());
    std::vector<uint8_t> scales(static_cast<std::size_t>(shape.scale_rows() * shape.scale_cols()));
    quantize_tiles(std::span<const float>(weight), shape, codes, scales);
    std::vector<float> back(weight.size());
    dequantize_tiles(codes, scales, shape, std::span<float>(back));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const auto at = static_cast<std::size_t>(r * cols + c);
        const float scale = ue8m0_to_float(
            scales[static_cast<std::size_t>(r / 128 * shape.scale_cols() + c / 128)]);
        EXPECT_EQ(back[at], e4m3_to_float(codes[at]) * scale);
        EXPECT_LE(std::abs(back[at] - weight[at]),
                  std::max(std::abs(weight[at]) * 0x1p-4F, scale * 0x1p-10F));
      }
    }
    // What a file holds keeps its values in a new quantisation, though a tile whose maximum was
    // rounded down to a power of two takes a smaller scale.
    std::vector<uint8_t> codes_again(codes.size());
    std::vector<uint8_t> scales_again(scales.size());
    quantize_tiles(std::span<const float>(back), shape, codes_again, scales_again);
    std::vector<float> back_again(weight.size());
    dequantize_tiles(codes_again, scales_again, shape, std::span<float>(back_again));
    EXPECT_EQ(back_again, back);
  }
}

TEST(WeightFormatTest, EveryTileTakesItsOwnMaximum) {
  const TileShape shape{256, 256};
  std::vector<float> weight(256 * 256, 0.0F);
  weight[0] = 448.0F;
  weight[200] = 3.5F;
  weight[200 * 256] = 224.0F;
  std::vector<uint8_t> codes(weight.size());
  std::vector<uint8_t> scales(4);
  quantize_tiles(std::span<const float>(weight), shape, codes, scales);
  EXPECT_EQ(scales, (std::vector<uint8_t>{127, 120, 126, 105}));
}

TEST(WeightFormatTest, Fp4GroupsRoundTripInFloatAndDouble) {
  const int64_t rows = 5;
  const int64_t cols = 96;
  const std::vector<float> weight = random_matrix(rows * cols, 2);
  std::vector<uint8_t> packed(weight.size() / 2);
  std::vector<uint8_t> scales(weight.size() / 32);
  quantize_groups_fp4(std::span<const float>(weight), rows, cols, packed, scales);
  std::vector<float> back(weight.size());
  dequantize_groups_fp4(packed, scales, rows, cols, std::span<float>(back));
  std::vector<double> back_double(weight.size());
  dequantize_groups_fp4(packed, scales, rows, cols, std::span<double>(back_double));
  for (std::size_t i = 0; i < weight.size(); ++i) {
    EXPECT_EQ(static_cast<double>(back[i]), back_double[i]);
    // The widest step of the format is 2 scales, so the error is at most one scale.
    EXPECT_LE(std::abs(back[i] - weight[i]), ue8m0_to_float(scales[i / 32]));
  }
  std::vector<uint8_t> packed_double(packed.size());
  std::vector<uint8_t> scales_double(scales.size());
  quantize_groups_fp4(
      std::span<const double>(back_double), rows, cols, packed_double, scales_double);
  std::vector<float> again(weight.size());
  dequantize_groups_fp4(packed_double, scales_double, rows, cols, std::span<float>(again));
  EXPECT_EQ(again, back);
}

TEST(WeightFormatTest, Fp4ToFp8KeepsEveryValue) {
  const TileShape shape{130, 160};
  std::vector<uint8_t> packed(130 * 160 / 2);
  for (std::size_t i = 0; i < packed.size(); ++i) {
    packed[i] = static_cast<uint8_t>(i * 37 + i / 256);
  }
  std::vector<uint8_t> group_scales(130 * 5);
  for (std::size_t i = 0; i < group_scales.size(); ++i) {
    group_scales[i] = static_cast<uint8_t>(100 + i * 7 % 15);  // a ratio of 2^14 in every full tile
  }
  std::vector<uint8_t> codes(130 * 160);
  std::vector<uint8_t> tile_scales(4);
  ASSERT_TRUE(fp4_to_fp8(packed, group_scales, shape, codes, tile_scales));
  EXPECT_EQ(tile_scales[0], 114 - 6);
  std::vector<float> from_fp4(codes.size());
  std::vector<float> from_fp8(codes.size());
  dequantize_groups_fp4(packed, group_scales, 130, 160, std::span<float>(from_fp4));
  dequantize_tiles(codes, tile_scales, shape, std::span<float>(from_fp8));
  EXPECT_EQ(from_fp8, from_fp4);
}

TEST(WeightFormatTest, Fp4ToFp8ExampleAndRefusal) {
  const TileShape shape{1, 64};
  std::vector<uint8_t> packed(32, 0);
  packed[0] = 0x07;   // 6 with scale 2^-6
  packed[16] = 0x03;  // 1.5 with scale 2^-8
  std::vector<uint8_t> codes(64);
  std::vector<uint8_t> tile_scales(1);
  ASSERT_TRUE(fp4_to_fp8(packed, std::vector<uint8_t>{121, 119}, shape, codes, tile_scales));
  EXPECT_EQ(ue8m0_to_float(tile_scales[0]), 0x1p-12F);
  EXPECT_EQ(e4m3_to_float(codes[0]), 384.0F);
  EXPECT_EQ(e4m3_to_float(codes[32]), 24.0F);
  EXPECT_TRUE(fp4_to_fp8(packed, std::vector<uint8_t>{121, 107}, shape, codes, tile_scales));
  EXPECT_FALSE(fp4_to_fp8(packed, std::vector<uint8_t>{121, 106}, shape, codes, tile_scales));
  EXPECT_FALSE(fp4_to_fp8(packed, std::vector<uint8_t>{5, 5}, shape, codes, tile_scales));
}

}  // namespace
}  // namespace baleen::numerics
