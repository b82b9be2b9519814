#include "ops/fake_quantize.h"

#include <cmath>
#include <limits>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "numerics/bfloat16.h"
#include "numerics/block_scale.h"
#include "numerics/weight_format.h"
#include "ops/block_simulation.h"
#include "ops/rounding.h"
#include "ops/tensor_checks.h"

namespace baleen::ops {
namespace {

at::Tensor floats(const std::vector<float>& values) {
  return at::tensor(values, at::kFloat);
}

TEST(NumericsConfigTest, NamedSettings) {
  EXPECT_EQ(Numerics::by_name("reference"), Numerics::reference());
  EXPECT_EQ(Numerics::by_name("plain"), Numerics::plain());
  EXPECT_FALSE(Numerics::plain().round_activations);
  EXPECT_TRUE(Numerics::plain().indexer_hadamard);
  try {
    Numerics::by_name("fast");
    FAIL() << "an unknown setting must be refused";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("fast"), std::string::npos);
  }
}

TEST(RoundingTest, Bf16TiesGoToEvenInBothDtypes) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor x =
        at::tensor({1.00390625, 1.01171875, -1.00390625, 0.1}, at::kDouble).to(dtype);
    const std::vector<double> y = values_of(round_bf16(x));
    EXPECT_EQ(y[0], 1.0);
    EXPECT_EQ(y[1], 1.015625);
    EXPECT_EQ(y[2], -1.0);
    EXPECT_EQ(y[3], 0.10009765625);
  }
}

TEST(RoundingTest, DoubleIsRoundedOnce) {
  // Just above the tie between 1 and 1 + 2^-7; through float it would become the tie and go to 1.
  const at::Tensor x = at::tensor({1.0 + 0x1p-8 + 0x1p-40}, at::kDouble);
  EXPECT_EQ(values_of(round_bf16(x))[0], 1.0078125);
}

TEST(FakeQuantizeTest, PublishedFp8Block) {
  const at::Tensor x =
      floats({1.0F, -0.30078125F, 0.010009765625F, 0.000499725341796875F, 1.703125F});
  EXPECT_EQ(values_of(quantize_fp8_block(x, 128)),
            (std::vector<double>{1.0, -0.3125, 0.009765625, 0.00048828125, 1.75}));
}

TEST(FakeQuantizeTest, PublishedFp4Block) {
  const at::Tensor x =
      floats({1.0F, -0.30078125F, 0.10009765625F, 0.050048828125F, 2.5F, -4.90625F});
  EXPECT_EQ(values_of(quantize_fp4_block(x, 32)), (std::vector<double>{1, -0.5, 0, 0, 2, -4}));
}

/// Every e4m3 border and its float neighbours, at scale 1 (the block holds 448).
TEST(FakeQuantizeTest, TensorFormEqualsTheCodecAtEveryBorder) {
  for (const bool fp8 : {true, false}) {
    std::vector<float> values;
    const int codes = fp8 ? 0x7F : 8;
    const auto decode = [&](int code) {
      return fp8 ? numerics::e4m3_to_float(static_cast<uint8_t>(code))
                 : numerics::e2m1_to_float(static_cast<uint8_t>(code));
    };
    for (int code = 0; code < codes; ++code) {
      const float here = decode(code);
      const float border = code + 1 < codes ? (here + decode(code + 1)) / 2 : here;
      for (const float v :
           {here, border, std::nextafter(border, 0.0F), std::nextafter(border, 1e9F)}) {
        values.push_back(v);
        values.push_back(-v);
      }
    }
    for (const float scale : {1.0F, 0x1p-20F, 0x1p30F}) {
      std::vector<float> scaled;
      for (const float v : values) {
        scaled.push_back(v * scale);
      }
      const auto width = static_cast<int64_t>(scaled.size());
      std::vector<float> expected = scaled;
      fp8 ? numerics::simulate_s8(std::span<float>(expected), width)
          : numerics::simulate_s4(std::span<float>(expected), width);
      const at::Tensor x = floats(scaled).unsqueeze(0);
      const at::Tensor found =
          fp8 ? simulate_tiles_fp8(x, 1, width) : simulate_tiles_fp4(x, 1, width);
      EXPECT_TRUE(at::equal(found.squeeze(0), floats(expected)))
          << "fp8 " << fp8 << " scale " << scale;
      const at::Tensor fused = fp8 ? quantize_fp8_block(x, width) : quantize_fp4_block(x, width);
      EXPECT_TRUE(at::equal(fused.squeeze(0), floats(expected)));
    }
  }
}

TEST(FakeQuantizeTest, BlockWidthsAroundTheBlock) {
  for (const int64_t width : {1, 63, 64, 65, 127, 128, 129, 300}) {
    for (const auto dtype : {at::kFloat, at::kDouble}) {
      const at::Tensor x =
          (seeded({3, width}, 11) * at::tensor({1.0, 1e-6, 100.0}).unsqueeze(1)).to(dtype);
      for (const int64_t block : {32, 64, 128}) {
        std::vector<double> fp8 = values_of(x);
        std::vector<double> fp4 = fp8;
        for (int64_t r = 0; r < 3; ++r) {
          const auto at_row = static_cast<std::size_t>(r * width);
          const auto count = static_cast<std::size_t>(width);
          numerics::simulate_s8(std::span(fp8).subspan(at_row, count), block);
          numerics::simulate_s4(std::span(fp4).subspan(at_row, count), block);
        }
        EXPECT_EQ(values_of(quantize_fp8_block(x, block)), fp8) << width << " " << block;
        EXPECT_EQ(values_of(quantize_fp4_block(x, block)), fp4) << width << " " << block;
        if (dtype == at::kFloat) {
          EXPECT_EQ(values_of(simulate_tiles_fp8(x, 1, block)), fp8) << width << " " << block;
          EXPECT_EQ(values_of(simulate_tiles_fp4(x, 1, block)), fp4) << width << " " << block;
        }
      }
    }
  }
  EXPECT_EQ(quantize_fp8_block(at::zeros({0, 5}), 128).numel(), 0);
}

TEST(FakeQuantizeTest, WeightsRoundAsTheCheckpointWriterDoes) {
  const numerics::TileShape shape{200, 160, 128, 128};
  const at::Tensor w = seeded({2, 200, 160}, 3, at::kFloat) * 0.05;
  const at::Tensor fp8 = fake_quantize_weight_fp8_128x128(w);
  const at::Tensor fp4 = fake_quantize_weight_fp4_group32(w);
  for (int64_t e = 0; e < 2; ++e) {
    const at::Tensor source = w.select(0, e).contiguous();
    const std::span<const float> values(source.const_data_ptr<float>(), 200 * 160);
    std::vector<uint8_t> codes(200 * 160);
    std::vector<uint8_t> scales(4);
    std::vector<float> back(200 * 160);
    numerics::quantize_tiles(values, shape, std::span(codes), std::span(scales));
    numerics::dequantize_tiles<float>(codes, scales, shape, back);
    EXPECT_TRUE(at::equal(fp8.select(0, e).reshape({-1}), floats(back)));
    codes.resize(200 * 80);
    scales.resize(200 * 5);
    numerics::quantize_groups_fp4(values, 200, 160, std::span(codes), std::span(scales));
    numerics::dequantize_groups_fp4<float>(codes, scales, 200, 160, back);
    EXPECT_TRUE(at::equal(fp4.select(0, e).reshape({-1}), floats(back)));
  }
}

TEST(FakeQuantizeTest, GradientIsTheIdentityWithoutClampMask) {
  at::Tensor x = (seeded({2, 64}, 5) * 1000.0).requires_grad_(true);
  for (const at::Tensor& y : {quantize_fp8_block(x, 64),
                              quantize_fp4_block(x, 32),
                              round_bf16(x),
                              fake_quantize_weight(x, LinearFormat::kFp8),
                              fake_quantize_weight(x, LinearFormat::kFp4)}) {
    const at::Tensor weights = seeded({2, 64}, 6);
    const auto gradient = torch::autograd::grad({(y * weights).sum()}, {x});
    EXPECT_TRUE(at::equal(gradient[0], weights));
  }
}

}  // namespace
}  // namespace baleen::ops
