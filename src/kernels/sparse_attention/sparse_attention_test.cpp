#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/sparse_attention/kv_row_oracle.h"
#include "kernels/sparse_attention/sparse_attention_cpu.h"
#include "kernels/sparse_attention/sparse_attention_oracle.h"

namespace baleen::kernels {
namespace {

struct AttentionScene {
  std::size_t heads, width;
  std::vector<double> q, values, sink;
  std::vector<const double*> rows;
  std::vector<std::span<const double>> spans;

  AttentionScene(std::size_t num_heads, std::size_t head_width, std::size_t num_rows)
      : heads(num_heads), width(head_width) {
    const auto bf16 = [](double x) { return numerics::round_to_bf16(x); };
    for (std::size_t i = 0; i < heads * width; ++i) {
      q.push_back(bf16(3.0 * std::sin(1.9 * static_cast<double>(i))));
    }
    for (std::size_t i = 0; i < num_rows * width; ++i) {
      values.push_back(bf16(std::cos(0.7 * static_cast<double>(i))));
    }
    for (std::size_t h = 0; h < heads; ++h) {
      sink.push_back(std::sin(static_cast<double>(h)));
    }
    for (std::size_t s = 0; s < num_rows; ++s) {
      rows.push_back(values.data() + s * width);
      spans.emplace_back(rows.back(), width);
    }
  }
  std::vector<double> run(bool rounded) const {
    std::vector<double> o(heads * width);
    std::vector<double> weights(rows.size());
    sparse_attention_cpu<double>({.q = q.data(),
                                  .rows = rows.data(),
                                  .num_rows = static_cast<int64_t>(rows.size()),
                                  .sink = sink.data(),
                                  .o = o.data(),
                                  .weights = weights.data(),
                                  .heads = static_cast<int64_t>(heads),
                                  .width = static_cast<int64_t>(width),
                                  .rounded = rounded});
    return o;
  }
};

TEST(SparseAttentionCpuTest, AgainstTheOracle) {
  for (const std::size_t num_rows : {1U, 2U, 63U, 64U, 65U, 131U}) {
    for (const std::size_t width : {1U, 8U, 20U}) {
      const AttentionScene scene(3, width, num_rows);
      const std::vector<double> exact = scene.run(false);
      const std::vector<double> rounded = scene.run(true);
      for (std::size_t h = 0; h < scene.heads; ++h) {
        const auto q = std::span(scene.q).subspan(h * width, width);
        const auto expected = sparse_attention_oracle(q, scene.spans, scene.sink[h], false);
        const auto expected_rounded = sparse_attention_oracle(q, scene.spans, scene.sink[h], true);
        for (std::size_t i = 0; i < width; ++i) {
          EXPECT_NEAR(exact[h * width + i], expected[i], 1e-13);
          // The stored value is the nearest bf16 of a sum that may differ in its last bits.
          EXPECT_NEAR(rounded[h * width + i],
                      expected_rounded[i],
                      0x1p-8 * std::abs(expected_rounded[i]) + 1e-12);
          EXPECT_EQ(rounded[h * width + i], numerics::round_to_bf16(rounded[h * width + i]));
        }
      }
    }
  }
}

TEST(SparseAttentionCpuTest, NoRowsAbort) {
  const AttentionScene scene(1, 4, 0);
  EXPECT_DEATH(scene.run(false), "own row");
}

TEST(SparseAttentionOracleTest, OutcomeAgreesWithTheListOracle) {
  const AttentionScene scene(3, 20, 70);
  for (std::size_t h = 0; h < scene.heads; ++h) {
    const auto q = std::span(scene.q).subspan(h * scene.width, scene.width);
    const auto expected = sparse_attention_oracle(q, scene.spans, scene.sink[h], false);
    const AttentionOutcome outcome = sparse_attention_outcome(q, scene.spans, scene.sink[h]);
    for (std::size_t i = 0; i < scene.width; ++i) {
      EXPECT_NEAR(outcome.o[i], expected[i], 1e-13);
    }
    EXPECT_NEAR(std::exp(outcome.lse_with_sink),
                std::exp(outcome.lse) + std::exp(scene.sink[h]),
                1e-10 * std::exp(outcome.lse_with_sink));
  }
}

TEST(SparseAttentionOracleTest, KnownAnswerOfTwoRows) {
  // z = log 3 and 0 after the scale of 1 / sqrt(1): weights 3 and 1 beside a sink of weight 4.
  const std::vector<double> q = {1.0};
  const std::vector<double> a = {std::log(3.0)};
  const std::vector<double> b = {0.0};
  const AttentionOutcome outcome = sparse_attention_outcome(q, {a, b}, std::log(4.0));
  EXPECT_NEAR(outcome.o[0], 3.0 / 8 * std::log(3.0), 1e-15);
  EXPECT_NEAR(outcome.lse, std::log(4.0), 1e-15);
  EXPECT_NEAR(outcome.lse_with_sink, std::log(8.0), 1e-15);
}

TEST(SparseAttentionOracleTest, EdgesOfSinkAndList) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::vector<double> q = {2.0};
  const std::vector<double> row = {0.5};
  const AttentionOutcome none = sparse_attention_outcome(q, {}, 1.0);
  EXPECT_EQ(none.o[0], 0);
  EXPECT_EQ(none.lse, -kInfinity);
  EXPECT_EQ(none.lse_with_sink, 1.0);
  const AttentionOutcome all = sparse_attention_outcome(q, {row}, kInfinity);
  EXPECT_EQ(all.o[0], 0);
  EXPECT_EQ(all.lse, 1.0);
  EXPECT_EQ(all.lse_with_sink, kInfinity);
  const AttentionOutcome no_sink = sparse_attention_outcome(q, {row}, -kInfinity);
  EXPECT_EQ(no_sink.o[0], 0.5);
  EXPECT_EQ(no_sink.lse_with_sink, 1.0);
  const AttentionOutcome twice = sparse_attention_outcome(q, {row, row}, -kInfinity);
  EXPECT_NEAR(twice.lse, 1.0 + std::log(2.0), 1e-15);  // a row listed twice counts twice
}

TEST(KvRowOracleTest, ReadsCodesScalesAndRope) {
  std::vector<uint8_t> values(kKvValueBytes);
  std::vector<uint8_t> scales = {127, 128, 126, 0, 134, 135, 254, 0};
  values[0] = 0x38;            // 1.0
  values[1] = 0x01;            // 2^-9, the smallest
  values[64] = 0xB8;           // -1.0 at scale 2
  values[128] = 0x7E;          // 448 at scale 1/2
  values[192] = 0x38;          // 2^-127: a subnormal bf16
  values[256] = 0x7F;          // unused code
  values[kKvNopeDims] = 0xC0;  // rope: 0x3FC0 = 1.5
  values[kKvNopeDims + 1] = 0x3F;
  const std::vector<double> row = kv_row_oracle(values.data(), scales.data());
  EXPECT_EQ(row[0], 1.0);
  EXPECT_EQ(row[1], 0x1p-9);
  EXPECT_EQ(row[64], -2.0);
  EXPECT_EQ(row[128], 224.0);
  EXPECT_EQ(row[192], 0x1p-127);
  EXPECT_EQ(row[256], 480.0 * 128);
  EXPECT_EQ(row[kKvNopeDims], 1.5);
  EXPECT_EQ(row[2], 0.0);
}

}  // namespace
}  // namespace baleen::kernels
