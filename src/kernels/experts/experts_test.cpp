#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/experts/experts_cpu.h"
#include "kernels/experts/experts_oracle.h"

namespace baleen::kernels {
namespace {

std::vector<double> wave(std::size_t count, double phase) {
  std::vector<double> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    // bf16 values, as a checkpoint's matrices and the stored activations are.
    values[i] = numerics::round_to_bf16(std::sin(1.3 * static_cast<double>(i) + phase));
  }
  return values;
}

struct Scene {
  static constexpr std::size_t kWidth = 40, kHidden = 150, kExperts = 4;
  std::vector<double> x = wave(kWidth, 0.1);
  std::vector<double> w1 = wave(kExperts * kHidden * kWidth, 0.2);
  std::vector<double> w3 = wave(kExperts * kHidden * kWidth, 0.3);
  std::vector<double> w2 = wave(kExperts * kHidden * kWidth, 0.4);
  std::vector<double> y = std::vector<double>(kWidth);
  std::vector<double> scratch = std::vector<double>(2 * kHidden + kWidth);

  ExpertsArgs<double> args(const std::vector<int64_t>& experts,
                           const std::vector<double>& weights) {
    return {.x = x.data(),
            .w1 = w1.data(),
            .w3 = w3.data(),
            .w2 = w2.data(),
            .experts = experts.data(),
            .weights = weights.data(),
            .y = y.data(),
            .scratch = scratch.data(),
            .slots = static_cast<int64_t>(experts.size()),
            .width = kWidth,
            .hidden = kHidden,
            .num_experts = kExperts,
            .limit = std::numeric_limits<double>::infinity()};
  }
  std::vector<double> expected(std::size_t expert,
                               double weight,
                               const ExpertOracleOptions& options) const {
    const std::size_t area = kHidden * kWidth;
    return expert_oracle(x,
                         std::span(w1).subspan(expert * area, area),
                         std::span(w3).subspan(expert * area, area),
                         std::span(w2).subspan(expert * area, area),
                         weight,
                         options);
  }
};

TEST(ExpertsCpuTest, AscendingExpertsWithEveryRoundingPoint) {
  Scene scene;
  for (const bool before : {true, false}) {
    for (const bool rounded : {true, false}) {
      const std::vector<int64_t> experts{3, 0, 2};
      const std::vector<double> weights{0.5, 1.25, 0.75};
      ExpertsArgs<double> args = scene.args(experts, weights);
      args.limit = 0.7;
      args.weight_before_w2 = before;
      args.quantised = rounded;
      args.rounded = rounded;
      experts_cpu(args);
      const ExpertOracleOptions options{.limit = 0.7,
                                        .weight_before_w2 = before,
                                        .rounding = {.quantised = false, .rounded = rounded}};
      ExpertOracleOptions quantised = options;
      quantised.rounding.quantised = rounded;
      std::vector<double> sum(Scene::kWidth, 0.0);
      if (rounded) {
        // The kernel takes the input already quantised; quantising twice changes nothing.
        numerics::simulate_s8(std::span<double>(scene.x), 128);
        experts_cpu(args);
      }
      for (const std::size_t slot : {1U, 2U, 0U}) {
        const auto one =
            scene.expected(static_cast<std::size_t>(experts[slot]), weights[slot], quantised);
        for (std::size_t i = 0; i < sum.size(); ++i) {
          sum[i] += one[i];
        }
      }
      for (std::size_t i = 0; i < sum.size(); ++i) {
        EXPECT_NEAR(scene.y[i], sum[i], 1e-12 * (1.0 + std::abs(sum[i]))) << before << rounded;
      }
    }
  }
}

TEST(ExpertsCpuTest, RepeatedExpertsAndNoSlots) {
  Scene scene;
  const std::vector<int64_t> experts{1, 1};
  const std::vector<double> weights{0.5, 0.25};
  experts_cpu(scene.args(experts, weights));
  const auto once = scene.expected(1, 0.75, {});
  for (std::size_t i = 0; i < once.size(); ++i) {
    EXPECT_NEAR(scene.y[i], once[i], 1e-12);
  }
  experts_cpu(scene.args({}, {}));
  EXPECT_EQ(scene.y, std::vector<double>(Scene::kWidth, 0.0));
}

TEST(ExpertsCpuTest, UnknownExpertAborts) {
  Scene scene;
  EXPECT_DEATH(experts_cpu(scene.args({4}, {1.0})), "expert 4 of 4");
  EXPECT_DEATH(experts_cpu(scene.args({-1}, {1.0})), "expert -1 of 4");
  EXPECT_DEATH(experts_cpu(scene.args({-2}, {1.0})), "below -1");
}

}  // namespace
}  // namespace baleen::kernels
