#include "ops/router.h"

#include <cmath>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kernels/router/router_oracle.h"
#include "ops/gradcheck.h"
#include "ops/tensor_checks.h"

namespace baleen::ops {
namespace {

struct RouterCase {
  std::vector<double> logits, bias;
  int64_t k;
  double scale;
  std::vector<double> experts, weights;
};

void expect_near(const std::vector<double>& found,
                 const std::vector<double>& expected,
                 double relative) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], relative * std::abs(expected[i]));
  }
}

void expect_case(const RouterCase& c) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor scores =
        sqrt_softplus(at::tensor(c.logits, at::kDouble).to(dtype), Numerics::plain()).unsqueeze(0);
    const at::Tensor bias =
        c.bias.empty() ? at::Tensor() : at::tensor(c.bias, at::kDouble).to(dtype);
    const at::Tensor experts = route_by_score(scores, bias, c.k);
    EXPECT_EQ(values_of(experts), c.experts);
    expect_near(
        values_of(route_weights(scores, experts, c.scale, Numerics::plain())), c.weights, 1e-5);
  }
}

TEST(RouterTest, PublishedScores) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor z =
        at::tensor({-30.0, -5.0, -1.0, 0.0, 1.0, 5.0, 20.0, 25.0}, at::kDouble).to(dtype);
    expect_near(values_of(sqrt_softplus(z, Numerics::plain())),
                {3.0590e-7, 0.08194723, 0.5596978, 0.8325546, 1.1459763, 2.2375690, 4.4721360, 5.0},
                2e-5);
  }
}

TEST(RouterTest, BiasChangesTheChoiceOnly) {
  expect_case({{1, -0.5, 2, 0}, {0, 0.5, -1, 0.2}, 2, 1.5, {1, 0}, {0.5629838, 0.9370162}});
  expect_case({{0.0, 1.0, -2.0, 3.0, -1.0, 0.5},
               {0.0, 0.0, 2.0, 0.0, 0.0, -0.3},
               3,
               1.5,
               {2, 3, 1},
               {0.16451987, 0.80628569, 0.52919443}});
}

TEST(RouterTest, VeryNegativeAndLargeLogits) {
  expect_case({{-17.0, -20.0, -18.5, -30.0}, {}, 2, 1.5, {0, 2}, {1.01876805, 0.48123195}});
  expect_case({{100.0, 88.9, 0.0, -5.0}, {}, 2, 1.5, {0, 1}, {0.77205452, 0.72794548}});
}

TEST(RouterTest, TableLayer) {
  const at::Tensor scores =
      sqrt_softplus(at::tensor({0.2, -0.4, 1.1, 0.0}, at::kDouble), Numerics::plain()).unsqueeze(0);
  const at::Tensor table = at::tensor({1, 3, 2, 0, 1, 1}, at::kLong).view({3, 2});
  const at::Tensor experts = route_by_table(table, at::tensor({1}, at::kLong));
  EXPECT_EQ(values_of(experts), (std::vector<double>{2, 0}));
  expect_near(values_of(route_weights(scores, experts, 2.5, Numerics::plain())),
              {1.42167618, 1.07832382},
              1e-5);
  // A repeated expert counts in every slot.
  const at::Tensor twice = route_by_table(table, at::tensor({2}, at::kLong));
  expect_near(values_of(route_weights(scores, twice, 2.5, Numerics::plain())), {1.25, 1.25}, 1e-12);
}

TEST(RouterTest, EverythingUnderflows) {
  const at::Tensor z = at::tensor({-200.0F, -210.0F, -220.0F}, at::kFloat).requires_grad_(true);
  const at::Tensor scores = sqrt_softplus(z, Numerics::plain()).unsqueeze(0);
  const at::Tensor experts = at::tensor({0, 2}, at::kLong).unsqueeze(0);
  const at::Tensor weights = route_weights(scores, experts, 2.5, Numerics::plain());
  EXPECT_EQ(values_of(weights), (std::vector<double>{1.25, 1.25}));
  weights.sum().backward();
  EXPECT_EQ(values_of(z.grad()), (std::vector<double>{0, 0, 0}));
}

TEST(RouterTest, ChoiceAndWeightsAgainstOracle) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor x = seeded({7, 5}, 1, dtype);
    const at::Tensor gate = seeded({6, 5}, 2, dtype);
    const at::Tensor bias = (seeded({6}, 3, dtype) * 2.0).round();  // many equal biases
    const at::Tensor scores = router_scores(x, gate, Numerics::plain());
    Numerics numerics = Numerics::plain();
    numerics.router_denominator_eps = 1e-3;
    for (const int64_t k : {1, 2, 6}) {
      const at::Tensor experts = route_by_score(scores, bias, k);
      const at::Tensor weights = route_weights(scores, experts, 1.5, numerics);
      for (int64_t row = 0; row < 7; ++row) {
        std::vector<double> z(6, 0.0);
        for (std::size_t e = 0; e < 6; ++e) {
          for (int64_t i = 0; i < 5; ++i) {
            z[e] += x[row][i].item<double>() * gate[static_cast<int64_t>(e)][i].item<double>();
          }
          z[e] = kernels::router_score_oracle(z[e]);
        }
        expect_near(values_of(scores[row]), z, error_bound(dtype, 5));
        const auto chosen = kernels::route_oracle(
            values_of(scores[row]), values_of(bias), static_cast<std::size_t>(k));
        EXPECT_EQ(values_of(experts[row]), std::vector<double>(chosen.begin(), chosen.end()));
        expect_near(values_of(weights[row]),
                    kernels::route_weights_oracle(values_of(scores[row]), chosen, 1.5, 1e-3),
                    error_bound(dtype, k));
      }
    }
  }
}

TEST(RouterTest, TiesGoToTheLowerExpertAndNanComesLast) {
  const at::Tensor scores = at::tensor({1.0, NAN, 1.0, 2.0, 1.0}, at::kDouble).unsqueeze(0);
  EXPECT_EQ(values_of(route_by_score(scores, {}, 5)), (std::vector<double>{3, 0, 2, 4, 1}));
}

TEST(RouterTest, GradientMatchesDifferences) {
  const at::Tensor experts = at::tensor({0, 2, 3, 1}, at::kLong).view({2, 2});
  const auto report = gradcheck(
      [&](const auto& in) {
        const at::Tensor scores = router_scores(in[0], in[1], Numerics::plain());
        return std::vector<at::Tensor>{scores,
                                       route_weights(scores, experts, 1.5, Numerics::plain())};
      },
      {seeded({2, 3}, 1), seeded({4, 3}, 2)});
  EXPECT_LT(report.worst, 1e-7) << report.where;
}

}  // namespace
}  // namespace baleen::ops
