#include "ops/experts.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kernels/experts/experts_oracle.h"
#include "ops/fake_quantize.h"
#include "ops/gradcheck.h"
#include "ops/rounding.h"
#include "ops/tensor_checks.h"

namespace baleen::ops {
namespace {

struct Scene {
  at::Tensor x, experts, weights;
  ExpertWeights matrices;
  double limit = 0.7;

  std::vector<double> expected(const Numerics& numerics, bool quantised) const {
    const kernels::ExpertOracleOptions options{
        .limit = limit,
        .weight_before_w2 = numerics.routing_weight == RoutingWeight::kBeforeW2,
        .rounding = {.quantised = quantised, .rounded = numerics.round_activations}};
    std::vector<double> all;
    for (int64_t row = 0; row < x.size(0); ++row) {
      std::vector<int64_t> slots(static_cast<std::size_t>(experts.size(1)));
      std::iota(slots.begin(), slots.end(), 0);
      std::stable_sort(slots.begin(), slots.end(), [&](int64_t a, int64_t b) {
        return experts[row][a].item<int64_t>() < experts[row][b].item<int64_t>();
      });
      std::vector<double> sum(static_cast<std::size_t>(x.size(1)), 0.0);
      for (const int64_t slot : slots) {
        const int64_t e = experts[row][slot].item<int64_t>();
        const auto y = kernels::expert_oracle(values_of(x[row]),
                                              values_of(matrices.w1[e]),
                                              values_of(matrices.w3[e]),
                                              values_of(matrices.w2[e]),
                                              weights[row][slot].item<double>(),
                                              options);
        for (std::size_t i = 0; i < sum.size(); ++i) {
          sum[i] += y[i];
        }
      }
      all.insert(all.end(), sum.begin(), sum.end());
    }
    return all;
  }
};

Scene scene(int64_t rows, at::ScalarType dtype) {
  Scene s{round_bf16(seeded({rows, 32}, 1, dtype) * 2.0),
          {},
          seeded({rows, 2}, 3, dtype) + 1.5,
          {fake_quantize_weight(seeded({5, 64, 32}, 4, dtype), LinearFormat::kFp4),
           fake_quantize_weight(seeded({5, 64, 32}, 5, dtype), LinearFormat::kFp4),
           fake_quantize_weight(seeded({5, 32, 64}, 6, dtype), LinearFormat::kFp4)}};
  // Expert 3 is never chosen; the slots of a row are neither equal nor in order.
  const at::Tensor first = (at::arange(rows) * 2 + 4).remainder(5);
  const at::Tensor chosen = first.masked_fill(first.eq(3), 2);
  const at::Tensor second = (chosen + 2).remainder(5);
  s.experts = at::stack({chosen, second.masked_fill(second.eq(3), 0)}, 1);
  return s;
}

TEST(ExpertsTest, PublishedSwiglu) {
  const at::Tensor gate = at::tensor({1.0, 12.0, -12.0, 9.0, 0.5}, at::kDouble);
  const at::Tensor up = at::tensor({1.0, 3.0, 3.0, -15.0, -10.0}, at::kDouble);
  EXPECT_LE(relative_error(swiglu(gate, up, 10.0),
                           {0.7310586, 29.998638, -2.2119e-4, -89.988894, -3.1122967}),
            1e-7);
  EXPECT_NEAR(values_of(swiglu(gate, up, {}))[1], 36.0, 1e-3);  // without limit
}

TEST(ExpertsTest, EveryFormAgainstOracle) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const auto weight_point : {RoutingWeight::kBeforeW2, RoutingWeight::kAfterW2}) {
      for (const int64_t rows : {1, 2, 9}) {
        const Scene s = scene(rows, dtype);
        Numerics numerics = Numerics::plain();
        numerics.routing_weight = weight_point;
        for (const auto form :
             {ExpertForm::kAuto, ExpertForm::kGrouped, ExpertForm::kDense, ExpertForm::kPerToken}) {
          const at::Tensor y = routed_experts(
              s.x, s.experts, s.weights, s.matrices, LinearFormat::kFp4, s.limit, numerics, form);
          EXPECT_LE(relative_error(y, s.expected(numerics, false)), error_bound(dtype, 128))
              << "rows " << rows << " form " << static_cast<int>(form);
        }
      }
    }
  }
}

TEST(ExpertsTest, QuantisedFormsAgainstOracle) {
  for (const auto weight_point : {RoutingWeight::kBeforeW2, RoutingWeight::kAfterW2}) {
    const Scene s = scene(5, at::kDouble);
    Numerics numerics = Numerics::reference();
    numerics.routing_weight = weight_point;
    for (const auto form : {ExpertForm::kGrouped, ExpertForm::kDense, ExpertForm::kPerToken}) {
      const at::Tensor y = routed_experts(
          s.x, s.experts, s.weights, s.matrices, LinearFormat::kFp4, s.limit, numerics, form);
      // In double the rounding points see the same sums on both sides.
      EXPECT_LE(relative_error(y, s.expected(numerics, true)), 1e-12) << static_cast<int>(form);
    }
  }
}

TEST(ExpertsTest, RepeatedExpertCountsOncePerSlot) {
  Scene s = scene(3, at::kDouble);
  s.experts = at::full({3, 2}, 1, at::kLong);
  for (const auto form : {ExpertForm::kGrouped, ExpertForm::kDense, ExpertForm::kPerToken}) {
    const at::Tensor y = routed_experts(s.x,
                                        s.experts,
                                        s.weights,
                                        s.matrices,
                                        LinearFormat::kFp4,
                                        s.limit,
                                        Numerics::plain(),
                                        form);
    EXPECT_LE(relative_error(y, s.expected(Numerics::plain(), false)), 1e-13);
  }
}

TEST(ExpertsTest, SharedExpertAgainstOracle) {
  for (const bool clamped : {true, false}) {
    const Scene s = scene(3, at::kDouble);
    const auto limit = clamped ? std::optional<double>(0.7) : std::nullopt;
    const at::Tensor y = swiglu_expert(s.x,
                                       s.matrices.w1[0],
                                       s.matrices.w3[0],
                                       s.matrices.w2[0],
                                       LinearFormat::kFp8,
                                       limit,
                                       Numerics::reference());
    std::vector<double> expected;
    for (int64_t row = 0; row < 3; ++row) {
      const auto one =
          kernels::expert_oracle(values_of(s.x[row]),
                                 values_of(s.matrices.w1[0]),
                                 values_of(s.matrices.w3[0]),
                                 values_of(s.matrices.w2[0]),
                                 1.0,
                                 {.limit = clamped ? 0.7 : std::numeric_limits<double>::infinity(),
                                  .rounding = {.quantised = true, .rounded = true}});
      expected.insert(expected.end(), one.begin(), one.end());
    }
    EXPECT_LE(relative_error(y, expected), 1e-12);
  }
}

TEST(ExpertsTest, NoRows) {
  const Scene s = scene(1, at::kDouble);
  const at::Tensor y = routed_experts(s.x.narrow(0, 0, 0),
                                      s.experts.narrow(0, 0, 0),
                                      s.weights.narrow(0, 0, 0),
                                      s.matrices,
                                      LinearFormat::kFp4,
                                      0.7,
                                      Numerics::reference());
  EXPECT_EQ(y.sizes(), (at::IntArrayRef{0, 32}));
}

TEST(ExpertsTest, GradientMatchesDifferencesAndIsEqualInBothForms) {
  const at::Tensor experts = at::tensor({2, 0, 0, 1}, at::kLong).view({2, 2});
  for (const auto form : {ExpertForm::kGrouped, ExpertForm::kDense}) {
    for (const auto weight_point : {RoutingWeight::kBeforeW2, RoutingWeight::kAfterW2}) {
      Numerics numerics = Numerics::plain();
      numerics.routing_weight = weight_point;
      const auto report = gradcheck(
          [&](const auto& in) {
            return std::vector<at::Tensor>{routed_experts(in[0],
                                                          experts,
                                                          in[1],
                                                          {in[2], in[3], in[4]},
                                                          LinearFormat::kFp4,
                                                          0.7,
                                                          numerics,
                                                          form)};
          },
          {seeded({2, 3}, 1),
           seeded({2, 2}, 2),
           seeded({3, 4, 3}, 3),
           seeded({3, 4, 3}, 4),
           seeded({3, 3, 4}, 5)});
      EXPECT_LT(report.worst, 1e-7) << report.where;
    }
  }
}

}  // namespace
}  // namespace baleen::ops
