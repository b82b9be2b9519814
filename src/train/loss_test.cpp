#include <cmath>
#include <span>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/sampling/sampling.h"
#include "ops/gradcheck.h"
#include "ops/linear.h"
#include "train/loss_scale.h"
#include "train/row_logprobs.h"

namespace baleen::train {
namespace {

at::Tensor waves(at::IntArrayRef shape, double phase, at::ScalarType dtype = at::kDouble) {
  int64_t count = 1;
  for (const int64_t extent : shape) {
    count *= extent;
  }
  return at::arange(count, at::kDouble).mul(0.71).add(phase).sin().view(shape).to(dtype);
}

/// Logits (1, 2, 3, 4) as a product: a hidden vector of one and the head's column.
RowLogprobs golden_row(double temperature, const at::Tensor& hidden) {
  const at::Tensor head = at::tensor({1.0, 2.0, 3.0, 4.0}, at::kDouble).unsqueeze(1);
  return row_logprobs(
      hidden,
      head,
      at::tensor({int64_t{2}}, at::kLong),
      {.numerics = ops::Numerics::plain(), .temperature = temperature, .entropy = true});
}

TEST(LossScaleTest, GivesTheGoldenAggregates) {
  const std::vector<std::vector<double>> losses = {{0.2, 0.4}, {1.0, 2.0, 3.0, 6.0}};
  const auto total = [&](LossAggregation aggregation) {
    const LossDenominators totals{.aggregation = aggregation,
                                  .weight = 6.0,
                                  .mtp_weight = 6.0,
                                  .samples = 2.0,
                                  .constant_length = 8.0};
    double sum = 0.0;
    for (const std::vector<double>& sample : losses) {
      for (const double loss : sample) {
        sum += loss * loss_coefficient(1.0, static_cast<double>(sample.size()), 6.0, totals);
      }
    }
    return sum;
  };
  EXPECT_NEAR(total(LossAggregation::kSampleMean), 1.65, 1e-12);
  EXPECT_NEAR(total(LossAggregation::kTokenMean), 2.1, 1e-12);
  EXPECT_NEAR(total(LossAggregation::kConstant), 0.7875, 1e-12);
  EXPECT_EQ(loss_coefficient(0.0, 0.0, 0.0, {}), 0.0);
  EXPECT_THROW(parse_loss_aggregation("mean"), ConfigError);
}

TEST(RowLogprobsTest, GivesTheGoldenRow) {
  const at::Tensor hidden = at::ones({1, 1}, at::kDouble).requires_grad_(true);
  const RowLogprobs row = golden_row(1.0, hidden);
  EXPECT_NEAR(row.logprobs.item<double>(), -1.440189699, 1e-9);
  EXPECT_NEAR(row.entropy.item<double>(), 0.947536964, 1e-9);
  row.logprobs.sum().backward();
  // d l / d h = sum over v of dl/dz_v * W_v with the golden dl/dz.
  EXPECT_NEAR(hidden.grad().item<double>(),
              -0.0320586033 - 2 * 0.0871443187 + 3 * 0.7631171819 - 4 * 0.6439142599,
              1e-8);
  EXPECT_NEAR(
      golden_row(0.8, at::ones({1, 1}, at::kDouble)).logprobs.item<double>(), -1.580818816, 1e-9);
}

TEST(RowLogprobsTest, GradientsMatchDifferences) {
  const at::Tensor targets =
      at::tensor({int64_t{0}, int64_t{6}, int64_t{3}, int64_t{3}, int64_t{5}});
  for (const int64_t chunk : {int64_t{2}, int64_t{-1}}) {
    const auto report = ops::gradcheck(
        [&](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
          const RowLogprobs out = row_logprobs(in[0],
                                               in[1],
                                               targets,
                                               {.numerics = ops::Numerics::plain(),
                                                .chunk_rows = chunk,
                                                .temperature = 0.7,
                                                .entropy = true});
          return {out.logprobs, out.entropy};
        },
        {waves({5, 4}, 0.1), waves({7, 4}, 0.9)});
    EXPECT_LT(report.worst, 1e-8) << report.where;
  }
}

TEST(RowLogprobsTest, GivesTheBitsThatTheSamplerReportsAtAnyTemperature) {
  const at::Tensor hidden = at::randn({40, 16}, at::kFloat) * 2.0;
  const at::Tensor head = at::randn({24, 16}, at::kFloat);
  ops::Numerics numerics;
  numerics.summation = ops::Summation::kInvariant;
  const at::Tensor logits = ops::linear_unrounded(hidden, head, numerics).contiguous();
  kernels::SamplingWorkspace workspace;
  for (const double temperature : {1.0, 0.8, 0.7, 1.3}) {
    std::vector<float> reported;
    at::Tensor targets = at::empty({40}, at::kLong);
    for (int64_t row = 0; row < 40; ++row) {
      kernels::SamplingParams params;
      params.temperature = static_cast<float>(temperature);
      params.seed = 5;
      params.position = row;
      params.want_logprob = true;
      const kernels::SampledToken token = kernels::sample_token(
          std::span<const float>(logits.const_data_ptr<float>() + row * 24, 24),
          params,
          {},
          workspace,
          nullptr);
      targets[row] = token.id;
      reported.push_back(token.logprob);
    }
    const at::Tensor found =
        row_logprobs(hidden, head, targets, {.numerics = numerics, .temperature = temperature})
            .logprobs;
    for (int64_t row = 0; row < 40; ++row) {
      EXPECT_EQ(found[row].item<float>(), reported[static_cast<std::size_t>(row)]) << temperature;
    }
  }
}

TEST(RowLogprobsTest, ChunksChangeNothing) {
  const at::Tensor hidden = waves({37, 8}, 0.2, at::kFloat);
  const at::Tensor head = waves({40, 8}, 0.5, at::kFloat);
  const at::Tensor targets = at::arange(37, at::kLong);
  for (const char* name : {"plain", "plain+invariant"}) {
    const ops::Numerics numerics = ops::Numerics::by_name(name);
    const auto run = [&](int64_t chunk, bool gradients) {
      return row_logprobs(hidden.clone().requires_grad_(gradients),
                          head,
                          targets,
                          {.numerics = numerics, .chunk_rows = chunk})
          .logprobs.detach();
    };
    const at::Tensor whole = run(-1, false);
    for (const int64_t chunk : {1, 7, 1024}) {
      for (const bool gradients : {false, true}) {
        const at::Tensor found = run(chunk, gradients);
        if (numerics.invariant()) {
          EXPECT_TRUE(at::equal(found, whole)) << chunk;
        } else {
          EXPECT_LT((found - whole).abs().max().item<double>(), 1e-6) << chunk;
        }
      }
    }
  }
}

}  // namespace
}  // namespace baleen::train
