#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "device/buffer.h"
#include "kernels/draft_entry/draft_entry.h"
#include "kernels/draft_entry/draft_entry_oracle.h"
#include "kernels/testing/gpu_test.h"
#include "kernels/testing/random_values.h"

namespace baleen::kernels {
namespace {

using DraftEntryGpuSmall = testing::GpuTest;

std::vector<double> doubles(const uint16_t* codes, std::size_t count) {
  std::vector<double> out;
  for (std::size_t i = 0; i < count; ++i) {
    out.push_back(numerics::bf16_to_float(codes[i]));
  }
  return out;
}

TEST_F(DraftEntryGpuSmall, NormedCodesAreTheOracles) {
  testing::RandomValues random(11);
  constexpr int32_t kRows = 5;
  for (const int32_t width : {256, 2048, 4096, 7168, 8192}) {
    std::vector<uint16_t> rows = random.bf16_normals(int64_t{kRows} * width, 3.0F);
    std::fill_n(rows.begin(), width, uint16_t{0});  // a row of zeros has the least scale
    const std::vector<float> weight = random.normals(width, 0.5F);
    const auto row_buffer = device::Buffer<uint16_t>::from_host(rows);
    const auto weight_buffer = device::Buffer<float>::from_host(weight);
    device::Buffer<uint8_t> codes(int64_t{kRows} * width);
    device::Buffer<uint8_t> scales(int64_t{kRows} * width / 128);
    norm_codes({.rows = row_buffer.data(),
                .weight = weight_buffer.data(),
                .codes = codes.data(),
                .scales = scales.data(),
                .num_rows = kRows,
                .width = width,
                .eps = 1e-6F},
               stream());
    synchronize();
    const std::vector<uint8_t> found_codes = codes.to_host();
    const std::vector<uint8_t> found_scales = scales.to_host();
    const std::vector<double> weights(weight.begin(), weight.end());
    int64_t different = 0;
    for (int32_t r = 0; r < kRows; ++r) {
      const std::size_t begin = static_cast<std::size_t>(r) * static_cast<std::size_t>(width);
      const NormCodesOracle expected = norm_codes_oracle(
          doubles(rows.data() + begin, static_cast<std::size_t>(width)), weights, 1e-6);
      for (std::size_t i = 0; i < static_cast<std::size_t>(width); ++i) {
        const float scale = numerics::ue8m0_to_float(found_scales[(begin + i) / 128]);
        ASSERT_EQ(scale, expected.scales[i / 128]) << "width " << width << " row " << r;
        const double found = double{numerics::e4m3_to_float(found_codes[begin + i])} * scale;
        different += found != expected.coded[i] ? 1 : 0;
        // Half a step of e4m3 (three bits, denormal below 2^-6), and one of bf16 before it.
        const double y = expected.normed[i];
        const double step = std::max(std::abs(y) / 8, double{scale} / 512);
        ASSERT_LE(std::abs(found - y), step / 2 * 1.01 + std::abs(y) / 256)
            << "width " << width << " row " << r << " element " << i;
      }
    }
    // A last bit of the sum seldom carries a value over a bf16 or e4m3 step.
    EXPECT_LE(different, kRows * width / 100) << "width " << width;
  }
}

TEST_F(DraftEntryGpuSmall, StreamsAreTheTokenPlusEachOfItsOwn) {
  testing::RandomValues random(12);
  constexpr int32_t kTokens = 3;
  for (const int32_t width : {256, 4096, 7168}) {
    const std::vector<uint16_t> token = random.bf16_normals(int64_t{kTokens} * width);
    const std::vector<uint16_t> streams = random.bf16_normals(int64_t{kTokens} * 4 * width);
    const auto token_buffer = device::Buffer<uint16_t>::from_host(token);
    auto stream_buffer = device::Buffer<uint16_t>::from_host(streams);
    join_streams({.token = token_buffer.data(),
                  .streams = stream_buffer.data(),
                  .out = stream_buffer.data(),
                  .num_tokens = kTokens,
                  .width = width},
                 stream());
    synchronize();
    std::vector<uint16_t> expected;
    for (std::size_t i = 0; i < streams.size(); ++i) {
      const std::size_t w = static_cast<std::size_t>(width);
      expected.push_back(
          numerics::bf16_from_float(numerics::bf16_to_float(token[i / (4 * w) * w + i % w]) +
                                    numerics::bf16_to_float(streams[i])));
    }
    EXPECT_EQ(stream_buffer.to_host(), expected) << "width " << width;
  }
}

}  // namespace
}  // namespace baleen::kernels
