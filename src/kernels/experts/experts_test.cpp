#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/experts/expert_divisor.h"
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
            .options = {.limit = std::numeric_limits<double>::infinity()}};
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
      args.options = {
          .limit = 0.7, .weight_before_w2 = before, .quantised = rounded, .rounded = rounded};
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

/// Rows of several tokens through one expert at a time, summed afterwards.
std::vector<double> by_expert(const Scene& scene,
                              const std::vector<double>& x,
                              const std::vector<int64_t>& experts,
                              const std::vector<double>& weights,
                              const ExpertOptions& options) {
  constexpr std::size_t kArea = Scene::kHidden * Scene::kWidth;
  const std::size_t tokens = x.size() / Scene::kWidth;
  const std::size_t slots = experts.size() / tokens;
  std::vector<double> parts(experts.size() * Scene::kWidth);
  for (std::size_t e = 0; e < Scene::kExperts; ++e) {
    std::vector<double> rows;
    std::vector<double> row_weights;
    std::vector<std::size_t> pairs;
    for (std::size_t pair = 0; pair < experts.size(); ++pair) {
      if (experts[pair] == static_cast<int64_t>(e)) {
        const auto begin = x.begin() + static_cast<std::ptrdiff_t>(pair / slots * Scene::kWidth);
        rows.insert(rows.end(), begin, begin + Scene::kWidth);
        row_weights.push_back(weights[pair]);
        pairs.push_back(pair);
      }
    }
    std::vector<double> out(rows.size());
    std::vector<double> scratch(2 * pairs.size() * Scene::kHidden);
    expert_rows_cpu<double>({.x = rows.data(),
                             .w1 = scene.w1.data() + e * kArea,
                             .w3 = scene.w3.data() + e * kArea,
                             .w2 = scene.w2.data() + e * kArea,
                             .weights = row_weights.data(),
                             .y = out.data(),
                             .scratch = scratch.data(),
                             .rows = static_cast<int64_t>(pairs.size()),
                             .width = Scene::kWidth,
                             .hidden = Scene::kHidden,
                             .options = options});
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const auto begin = out.begin() + static_cast<std::ptrdiff_t>(i * Scene::kWidth);
      std::copy(begin,
                begin + Scene::kWidth,
                parts.begin() + static_cast<std::ptrdiff_t>(pairs[i] * Scene::kWidth));
    }
  }
  std::vector<double> y(x.size());
  for (std::size_t token = 0; token < tokens; ++token) {
    std::vector<const double*> of_token;
    for (std::size_t slot = 0; slot < slots; ++slot) {
      of_token.push_back(parts.data() + (token * slots + slot) * Scene::kWidth);
    }
    sum_slots_cpu(of_token.data(),
                  experts.data() + token * slots,
                  static_cast<int64_t>(slots),
                  int64_t{Scene::kExperts},
                  int64_t{Scene::kWidth},
                  y.data() + token * Scene::kWidth);
  }
  return y;
}

TEST(ExpertsCpuTest, TokensTogetherGiveTheBitsOfEachAlone) {
  Scene scene;
  constexpr std::size_t kTokens = 9;
  std::vector<double> x = wave(kTokens * Scene::kWidth, 0.9);
  numerics::simulate_s8(std::span<double>(x), static_cast<int64_t>(Scene::kWidth));
  std::vector<int64_t> experts;
  std::vector<double> weights;
  for (std::size_t pair = 0; pair < kTokens * 3; ++pair) {
    experts.push_back(static_cast<int64_t>((pair * 7 + pair / 5) % Scene::kExperts));
    weights.push_back(0.1 * static_cast<double>(pair % 11 + 1));
  }
  for (const bool before : {true, false}) {
    for (const bool rounded : {true, false}) {
      const ExpertOptions options{
          .limit = 0.7, .weight_before_w2 = before, .quantised = rounded, .rounded = rounded};
      const auto together = by_expert(scene, x, experts, weights, options);
      for (std::size_t token = 0; token < kTokens; ++token) {
        const auto begin = static_cast<std::ptrdiff_t>(token * 3);
        const std::vector<int64_t> ids(experts.begin() + begin, experts.begin() + begin + 3);
        const std::vector<double> routes(weights.begin() + begin, weights.begin() + begin + 3);
        ExpertsArgs<double> args = scene.args(ids, routes);
        args.x = x.data() + token * Scene::kWidth;
        args.options = options;
        experts_cpu(args);
        for (std::size_t i = 0; i < Scene::kWidth; ++i) {
          ASSERT_EQ(together[token * Scene::kWidth + i], scene.y[i]) << token << " " << i;
        }
      }
    }
  }
}

TEST(ExpertsCpuTest, UnknownExpertAborts) {
  Scene scene;
  EXPECT_DEATH(experts_cpu(scene.args({4}, {1.0})), "expert 4 of 4");
  EXPECT_DEATH(experts_cpu(scene.args({-1}, {1.0})), "expert -1 of 4");
  EXPECT_DEATH(experts_cpu(scene.args({-2}, {1.0})), "below -1");
}

TEST(ExpertDivisorTest, EqualsADivision) {
  for (int32_t value = 1; value <= 1100; ++value) {
    const experts::Divisor divisor = experts::make_divisor(value);
    const auto largest = static_cast<int32_t>(
        std::min<int64_t>((int64_t{1} << 32) / value - 1, std::numeric_limits<int32_t>::max()));
    for (const int32_t quotient : {0, 1, 2, 7, 100, 1535, largest / value}) {
      for (const int32_t apart : {-1, 0, 1}) {  // around the multiples
        const int64_t n = int64_t{quotient} * value + apart;
        if (n >= 0 && n <= largest) {
          ASSERT_EQ(divisor.quotient(static_cast<int32_t>(n)), n / value) << n << " by " << value;
        }
      }
    }
    ASSERT_EQ(divisor.quotient(largest), largest / value) << value;
  }
}

}  // namespace
}  // namespace baleen::kernels
