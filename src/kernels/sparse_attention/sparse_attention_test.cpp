#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/sparse_attention/sparse_attention_cpu.h"
#include "kernels/sparse_attention/sparse_attention_oracle.h"

namespace baleen::kernels {
namespace {

struct Scene {
  std::size_t heads, width;
  std::vector<double> q, values, sink;
  std::vector<const double*> rows;
  std::vector<std::span<const double>> spans;

  Scene(std::size_t num_heads, std::size_t head_width, std::size_t num_rows)
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
      const Scene scene(3, width, num_rows);
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
  const Scene scene(1, 4, 0);
  EXPECT_DEATH(scene.run(false), "own row");
}

}  // namespace
}  // namespace baleen::kernels
