#include <cmath>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "device/buffer.h"
#include "kernels/query_finish/query_finish.h"
#include "kernels/query_finish/query_finish_oracle.h"
#include "kernels/testing/gpu_test.h"
#include "kernels/testing/random_values.h"

namespace baleen::kernels {
namespace {

using QueryFinishGpuSmall = testing::GpuTest;
constexpr float kQueryEps = 1e-6F;

std::vector<float> query_frequencies() {
  std::vector<float> table;
  for (int i = 0; i < kRopePairs; ++i) {
    table.push_back(static_cast<float>(std::pow(160000.0, -2.0 * i / 64.0)));
  }
  return table;
}

/// Rows of sizes from tiny to large, one of zeros.
std::vector<uint16_t> query_rows(testing::RandomValues& random, int64_t rows, int64_t width) {
  std::vector<uint16_t> values;
  for (int64_t i = 0; i < rows; ++i) {
    const int exponent = static_cast<int>(random.integer(-12, 8));
    for (int64_t j = 0; j < width; ++j) {
      values.push_back(i == 3 ? uint16_t{0}
                              : numerics::bf16_from(std::ldexp(random.normal(), exponent)));
    }
  }
  return values;
}

std::vector<double> widened(std::span<const uint16_t> row) {
  std::vector<double> values;
  for (const uint16_t code : row) {
    values.push_back(static_cast<double>(numerics::bf16_to_float(code)));
  }
  return values;
}

TEST_F(QueryFinishGpuSmall, HeadsAreTheOraclesUpToOneStepOfBf16) {
  testing::RandomValues random(1);
  const std::vector<float> table = query_frequencies();
  const auto frequencies = device::Buffer<float>::from_host(table);
  for (const auto& [tokens, num_heads] : {std::pair{1, 8}, {3, 5}, {4, 16}}) {
    const std::vector<uint16_t> rows = query_rows(random, tokens * num_heads, kKvDims);
    const std::vector<int32_t> positions = {0, 131071, 900001, 77};
    const auto in = device::Buffer<uint16_t>::from_host(rows);
    const auto at = device::Buffer<int32_t>::from_host(positions);
    device::Buffer<uint16_t> out(in.count());
    out.fill_bytes(0xFF);
    query_finish({.heads = {.rows = in.data(),
                            .num_heads = num_heads,
                            .eps = kQueryEps,
                            .frequencies = frequencies.data(),
                            .out = out.data()},
                  .positions = at.data(),
                  .num_tokens = tokens},
                 stream());
    synchronize();
    const std::vector<uint16_t> found = out.to_host();
    int64_t equal = 0;
    for (int32_t head = 0; head < tokens * num_heads; ++head) {
      const auto part = [&](const std::vector<uint16_t>& all) {
        return std::span(all).subspan(static_cast<std::size_t>(head) * kKvDims, kKvDims);
      };
      const std::vector<double> expected =
          query_head_oracle(widened(part(rows)),
                            table,
                            positions[static_cast<std::size_t>(head / num_heads)],
                            static_cast<double>(kQueryEps));
      const std::vector<double> got = widened(part(found));
      for (std::size_t i = 0; i < expected.size(); ++i) {
        // Float sums may fall to the other side of a rounding border twice: norm and rotation, each
        // one step of 2^-8 of the larger member of a pair.
        const double pair = i < kKvNopeDims ? 0.0 : std::abs(expected[i ^ 1U]);
        ASSERT_NEAR(got[i], expected[i], 0x1p-7 * std::max(std::abs(expected[i]), pair))
            << "head " << head << " dim " << i;
        equal += got[i] == expected[i] ? 1 : 0;
      }
    }
    EXPECT_GT(equal, in.count() * 99 / 100);
  }
}

TEST_F(QueryFinishGpuSmall, IndexHeadsHaveTheOraclesCodesAndScaledWeights) {
  testing::RandomValues random(2);
  const std::vector<float> table = query_frequencies();
  const auto frequencies = device::Buffer<float>::from_host(table);
  const int32_t tokens = 3;
  const int32_t num_heads = 64;
  const std::vector<uint16_t> rows = query_rows(random, tokens * num_heads, kIndexDims);
  const std::vector<int32_t> positions = {5, 899999, 4096};
  const std::vector<float> weights = random.normals(tokens * num_heads);
  const auto in = device::Buffer<uint16_t>::from_host(rows);
  const auto at = device::Buffer<int32_t>::from_host(positions);
  auto scaled = device::Buffer<float>::from_host(weights);
  device::Buffer<uint8_t> codes(in.count());
  codes.fill_bytes(0xFF);
  query_finish({.index = {.rows = in.data(),
                          .num_heads = num_heads,
                          .frequencies = frequencies.data(),
                          .weights = scaled.data(),
                          .codes = codes.data(),
                          .weights_out = scaled.data()},
                .positions = at.data(),
                .num_tokens = tokens},
               stream());
  synchronize();
  const std::vector<uint8_t> found = codes.to_host();
  const std::vector<float> found_weights = scaled.to_host();
  int64_t different = 0;
  for (int32_t head = 0; head < tokens * num_heads; ++head) {
    const auto first = static_cast<std::size_t>(head) * kIndexDims;
    const IndexHeadBytes expected =
        index_head_oracle(widened(std::span(rows).subspan(first, kIndexDims)),
                          table,
                          positions[static_cast<std::size_t>(head / num_heads)]);
    const auto at_head = static_cast<std::size_t>(head);
    EXPECT_EQ(found_weights[at_head], weights[at_head] * expected.scale) << "head " << head;
    for (std::size_t i = 0; i < kIndexDims; ++i) {
      different += found[first + i] != expected.codes[i] ? 1 : 0;
    }
  }
  // A float sum of the transform may round its bf16 the other way; few of those change an E2M1
  // code.
  EXPECT_LE(different, in.count() / 200);
}

TEST_F(QueryFinishGpuSmall, ZeroTokensLaunchNothing) {
  query_finish({.num_tokens = 0}, stream());
  synchronize();
}

}  // namespace
}  // namespace baleen::kernels
