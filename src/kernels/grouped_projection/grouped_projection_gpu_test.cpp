// The grouped projection against the oracle, with e4m3 and bf16 weights, plain and quantised
// output.
#include <algorithm>
#include <vector>

#include "kernels/grouped_projection/grouped_case_test.h"
#include "kernels/testing/gpu_test.h"
#include "numerics/block_scale.h"

namespace baleen::kernels {
namespace {

using testing::grouped_params_of;
using testing::LinearCase;
using testing::LinearCaseShape;
using GroupedProjectionGpuSmall = testing::GpuTest;
using GroupedProjectionGpu = testing::GpuTest;

constexpr LinearCaseShape small_shape(WeightFormat format) {
  return {.outputs = 256, .inputs = 512, .groups = 2, .format = format};
}

TEST_F(GroupedProjectionGpuSmall, MatchesOracleAtEveryTokenCount) {
  for (const WeightFormat format : {WeightFormat::kE4m3AsBf16, WeightFormat::kBf16}) {
    LinearCase one(small_shape(format), 65, 31);
    for (const int32_t tokens : {1, 2, 7, 8, 9, 16, 17, 32, 33, 65}) {
      for (const int32_t cluster : {1, 4}) {
        one.paint();
        GroupedProjectionParams params = grouped_params_of(one, small_shape(format), tokens);
        params.tuning.cluster = cluster;
        launch_grouped_projection(params, stream());
        synchronize();
        const std::vector<float> y = one.y_float();
        EXPECT_TRUE(one.agrees(y, tokens))
            << "format " << static_cast<int>(format) << " M " << tokens << " cluster " << cluster;
        EXPECT_TRUE(std::isnan(y[static_cast<std::size_t>(tokens * one.rows())]));
      }
    }
  }
}

TEST_F(GroupedProjectionGpuSmall, PortableMatchesOracle) {
  for (const WeightFormat format : {WeightFormat::kE4m3AsBf16, WeightFormat::kBf16}) {
    LinearCase one(small_shape(format), 3, 32);
    launch_grouped_projection_portable(grouped_params_of(one, small_shape(format), 3), stream());
    synchronize();
    EXPECT_TRUE(one.agrees(one.y_float(), 3));
  }
}

// Every e4m3 code but NaN, sub-normals too, must become exactly its bf16 value: one weight per row
// is a code, x picks it out.
TEST_F(GroupedProjectionGpuSmall, EveryCodeConvertsExactly) {
  const LinearCaseShape shape{
      .outputs = 256, .inputs = 128, .groups = 1, .format = WeightFormat::kE4m3AsBf16};
  LinearCase one(shape, 1, 33);
  std::fill(one.weight_scales().begin(), one.weight_scales().end(), uint8_t{127});
  for (const int64_t place : {0, 1, 9, 40, 127}) {
    std::fill(one.weight().begin(), one.weight().end(), uint8_t{0});
    std::fill(one.x().begin(), one.x().end(), uint8_t{0});
    one.x()[static_cast<std::size_t>(2 * place) + 1] = 0x3F;  // bf16 1.0 = 0x3F80
    one.x()[static_cast<std::size_t>(2 * place)] = 0x80;
    for (int64_t row = 0; row < 256; ++row) {
      one.weight()[static_cast<std::size_t>(row * 128 + place)] =
          (row & 0x7F) == 0x7F ? uint8_t{0} : static_cast<uint8_t>(row);
    }
    one.upload();
    launch_grouped_projection(grouped_params_of(one, shape, 1), stream());
    synchronize();
    const std::vector<float> y = one.y_float();
    for (std::size_t row = 0; row < 256; ++row) {
      const float expected =
          (row & 0x7F) == 0x7F ? 0.0F : numerics::e4m3_to_float(static_cast<uint8_t>(row));
      EXPECT_EQ(y[row], expected) << "code " << row << " place " << place;
    }
  }
}

TEST_F(GroupedProjectionGpuSmall, QuantisedOutputIsTheQuantisedBf16Output) {
  for (const WeightFormat format : {WeightFormat::kE4m3AsBf16, WeightFormat::kBf16}) {
    for (const int32_t cluster : {1, 2, 4}) {
      for (const int32_t tokens : {1, 2, 5, 16, 33}) {
        LinearCase one(small_shape(format), tokens, 34);
        GroupedProjectionParams params =
            grouped_params_of(one, small_shape(format), tokens, LinearOutput::kBf16);
        params.tuning.cluster = cluster;
        launch_grouped_projection(params, stream());
        synchronize();
        const std::vector<uint16_t> plain = one.y_bf16();
        one.paint();
        params.output = LinearOutput::kE4m3;
        launch_grouped_projection(params, stream());
        synchronize();
        const std::vector<uint8_t> codes = one.y_bytes();
        const std::vector<uint8_t> scales = one.y_scales();
        const auto rows = static_cast<std::size_t>(one.rows());
        int64_t bad = 0;
        for (std::size_t token = 0; token < static_cast<std::size_t>(tokens); ++token) {
          std::vector<float> row(rows);
          for (std::size_t i = 0; i < rows; ++i) {
            row[i] = numerics::bf16_to_float(plain[token * rows + i]);
          }
          std::vector<uint8_t> expected_codes(rows);
          std::vector<uint8_t> expected_scales(rows / 128);
          numerics::quantize_q8(std::span<const float>(row), 128, expected_codes, expected_scales);
          for (std::size_t i = 0; i < rows; ++i) {
            bad += codes[token * rows + i] != expected_codes[i] ? 1 : 0;
          }
          for (std::size_t i = 0; i < rows / 128; ++i) {
            bad += scales[token * (rows / 128) + i] != expected_scales[i] ? 1 : 0;
          }
        }
        EXPECT_EQ(bad, 0) << "format " << static_cast<int>(format) << " cluster " << cluster
                          << " M " << tokens;
      }
    }
  }
}

TEST_F(GroupedProjectionGpu, MatchesOracleOnShapesOfTheModel) {
  for (const int32_t groups : {2, 8}) {
    const LinearCaseShape shape{
        .outputs = 1024, .inputs = 4096, .groups = groups, .format = WeightFormat::kE4m3AsBf16};
    LinearCase one(shape, 33, 35);
    for (const LinearMode mode : {LinearMode::kFast, LinearMode::kInvariant}) {
      std::vector<float> first;
      for (const int32_t tokens : {33, 1, 16}) {
        one.paint();
        GroupedProjectionParams params = grouped_params_of(one, shape, tokens);
        params.mode = mode;
        launch_grouped_projection(params, stream());
        synchronize();
        const std::vector<float> y = one.y_float();
        EXPECT_TRUE(one.agrees(y, tokens, 600)) << groups << " M " << tokens;
        if (first.empty()) {
          first = y;
        }
        EXPECT_TRUE(std::equal(y.begin(), y.begin() + tokens * one.rows(), first.begin()))
            << "bits changed with M " << tokens;
      }
    }
  }
}

}  // namespace
}  // namespace baleen::kernels
