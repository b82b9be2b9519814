#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/sinkhorn/sinkhorn_cpu.h"
#include "kernels/sinkhorn/sinkhorn_oracle.h"

namespace baleen::kernels {
namespace {

std::vector<double> seeded_logits(std::size_t count) {
  std::vector<double> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = 4.0 * std::sin(2.3 * static_cast<double>(i) + 0.4);
  }
  return values;
}

TEST(SinkhornCpuTest, EqualsTheOracleInDouble) {
  for (const int64_t n : {1, 2, 4, 16}) {
    for (const int iters : {1, 2, 20}) {
      const auto area = static_cast<std::size_t>(n * n);
      const auto logits = seeded_logits(3 * area);
      std::vector<double> comb(logits.size());
      sinkhorn_cpu(
          logits.data(), comb.data(), {.count = 3, .width = n, .iters = iters, .eps = 1e-6});
      for (std::size_t m = 0; m < 3; ++m) {
        const auto expected = sinkhorn_oracle(
            std::span(logits).subspan(m * area, area), static_cast<std::size_t>(n), 1e-6, iters);
        for (std::size_t i = 0; i < area; ++i) {
          EXPECT_NEAR(comb[m * area + i], expected[i], 1e-15) << n << " " << iters;
        }
      }
    }
  }
}

TEST(SinkhornCpuTest, BackwardMatchesDifferences) {
  const SinkhornShape shape{.count = 2, .width = 4, .iters = 20, .eps = 1e-6};
  std::vector<double> logits = seeded_logits(32);
  std::vector<double> weights(32);
  for (std::size_t i = 0; i < 32; ++i) {
    weights[i] = std::cos(1.1 * static_cast<double>(i));
  }
  std::vector<double> gradient(32);
  sinkhorn_backward_cpu(logits.data(), weights.data(), gradient.data(), shape);
  const auto loss = [&] {
    std::vector<double> comb(32);
    sinkhorn_cpu(logits.data(), comb.data(), shape);
    double sum = 0.0;
    for (std::size_t i = 0; i < 32; ++i) {
      sum += weights[i] * comb[i];
    }
    return sum;
  };
  for (std::size_t i = 0; i < 32; ++i) {
    const double value = logits[i];
    logits[i] = value + 1e-6;
    const double above = loss();
    logits[i] = value - 1e-6;
    const double below = loss();
    logits[i] = value;
    EXPECT_NEAR(gradient[i], (above - below) / 2e-6, 1e-8) << i;
  }
}

TEST(SinkhornCpuTest, WidthOutsideTheLimitAborts) {
  double value = 0.0;
  EXPECT_DEATH(sinkhorn_cpu(&value, &value, {.count = 0, .width = 17, .iters = 1, .eps = 0.0}),
               "width=17");
}

}  // namespace
}  // namespace baleen::kernels
