#include "kernels/router/router_cpu.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/router/router_oracle.h"

namespace baleen::kernels {
namespace {

template <class T>
std::vector<T> route_weights(const std::vector<T>& scores,
                             const std::vector<int64_t>& experts,
                             double scale,
                             double eps) {
  std::vector<T> weights(experts.size());
  route_weights_cpu<T>({.scores = scores.data(),
                        .experts = experts.data(),
                        .weights = weights.data(),
                        .rows = 1,
                        .num_experts = static_cast<int64_t>(scores.size()),
                        .slots = static_cast<int64_t>(experts.size()),
                        .scale = scale,
                        .eps = eps});
  return weights;
}

TEST(RouterCpuTest, ScoresAgainstTheOracle) {
  const std::vector<double> z = {-800, -100, -30, -5, -1, 0, 1, 5, 19.9, 20, 20.1, 25, 700};
  std::vector<double> scores(z.size());
  router_scores_cpu(z.data(), scores.data(), static_cast<int64_t>(z.size()));
  for (std::size_t i = 0; i < z.size(); ++i) {
    EXPECT_NEAR(scores[i], router_score_oracle(z[i]), 4 * 0x1p-53 * scores[i]) << z[i];
    // exp and log1p of an argument that a float holds, then a root: a few roundings.
    const auto single = static_cast<float>(z[i]);
    float score = 0;
    router_scores_cpu(&single, &score, 1);
    EXPECT_NEAR(score, router_score_oracle(single), 4 * 0x1p-24 * score + 1e-22) << z[i];
  }
}

TEST(RouterCpuTest, WeightsAgainstTheOracle) {
  const std::vector<double> scores = {0.5, 1.5, 0.25, 2.0, 0.125};
  for (const double eps : {0.0, 1e-3}) {
    for (const std::vector<int64_t>& experts :
         std::vector<std::vector<int64_t>>{{3}, {3, 1}, {4, 0, 2}, {1, 1}, {2, 4, 2, 0}}) {
      const auto expected = route_weights_oracle(scores, experts, 1.5, eps);
      const auto found = route_weights(scores, experts, 1.5, eps);
      for (std::size_t slot = 0; slot < experts.size(); ++slot) {
        EXPECT_NEAR(found[slot], expected[slot], 8 * 0x1p-53 * expected[slot]);
      }
    }
  }
}

TEST(RouterCpuTest, WeightsDoNotDependOnTheOrderOfTheSlots) {
  // In float 2^24 + 1 + 1 depends on the order.
  const std::vector<float> scores = {0x1p24F, 1.0F, 1.0F};
  const auto ascending = route_weights<float>(scores, {0, 1, 2}, 1.0, 0.0);
  const auto turned = route_weights<float>(scores, {2, 1, 0}, 1.0, 0.0);
  EXPECT_EQ(ascending[0], turned[2]);
  EXPECT_EQ(ascending[1], turned[1]);
  EXPECT_EQ(ascending[2], turned[0]);
}

TEST(RouterCpuTest, EverythingUnderflows) {
  const std::vector<float> none = {0.0F, 0.0F, 0.0F};
  EXPECT_EQ(route_weights<float>(none, {0, 2}, 2.5, 0.0), (std::vector<float>{1.25F, 1.25F}));
}

TEST(RouterCpuTest, UnknownExpertAborts) {
  const std::vector<float> scores = {1.0F, 2.0F};
  EXPECT_DEATH(route_weights<float>(scores, {2}, 1.0, 0.0), "expert 2 of 2");
}

}  // namespace
}  // namespace baleen::kernels
