// Losses of one token: listed values, finite differences away from kinks, one-sided at them.

#include "policy/token_losses.h"

#include <cmath>
#include <functional>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace baleen::policy {
namespace {

constexpr double kGolden = 1e-7;

void expect_golden(double value, double expected) {
  EXPECT_NEAR(value, expected, kGolden * std::max(1.0, std::abs(expected)));
}

/// Central difference; error of order step^2, 1e-9 relative here.
double slope(const std::function<double(double)>& f, double x) {
  const double step = 1e-5 * std::max(1.0, std::abs(x));
  return (f(x + step) - f(x - step)) / (2.0 * step);
}

/// One-sided difference of second order: `side` is +1 or -1.
double one_sided(const std::function<double(double)>& f, double x, double side) {
  const double h = side * 1e-5;
  return (-3.0 * f(x) + 4.0 * f(x + h) - f(x + 2.0 * h)) / (2.0 * h);
}

struct SurrogateGolden {
  const char* id;
  double logprob, old_logprob, advantage;
  ClipRange range;
  double ratio, loss, derivative;
  bool clipped;
};

TEST(TokenLossTest, ClippedSurrogateGivesTheListedValues) {
  const ClipRange dapo{0.2, 0.28, std::nullopt};
  const std::vector<SurrogateGolden> cases = {
      {"T-L1a", -0.7, -1.0, 1.0, dapo, 1.349858808, -1.28, 0.0, true},
      {"T-L1b", -0.7, -1.0, -1.0, dapo, 1.349858808, 1.349858808, 1.349858808, false},
      {"T-L1c", -1.5, -1.0, 1.0, dapo, 0.6065306597, -0.6065306597, -0.6065306597, false},
      {"T-L1d", -1.5, -1.0, -1.0, dapo, 0.6065306597, 0.8, 0.0, true},
      {"T-L1e", -0.5, -2.0, -1.0, {0.2, 0.28, 3.0}, 4.48168907, 3.0, 0.0, false},
      {"T-L1f", -0.9, -0.9, 0.75, dapo, 1.0, -0.75, -0.75, false},
      {"T-L1f", -0.9, -0.9, -0.75, dapo, 1.0, 0.75, 0.75, false}};
  for (const SurrogateGolden& golden : cases) {
    SCOPED_TRACE(golden.id);
    const double log_ratio = golden.logprob - golden.old_logprob;
    const SurrogateTerm term = clipped_surrogate(log_ratio, golden.advantage, golden.range);
    expect_golden(clamped_ratio(log_ratio).value, golden.ratio);
    expect_golden(term.loss, golden.loss);
    expect_golden(term.derivative, golden.derivative);
    EXPECT_EQ(term.clipped, golden.clipped);
  }
}

TEST(TokenLossTest, KlEstimatesGiveTheListedValues) {
  expect_golden(kl_estimate(KlType::kK1, 0.2).value, 0.2);
  expect_golden(kl_estimate(KlType::kK2, 0.2).value, 0.02);
  expect_golden(kl_estimate(KlType::kK3, 0.2).value, 0.01873075308);
  expect_golden(kl_estimate(KlType::kK3, -0.2).value, 0.02140275816);
  expect_golden(kl_estimate(KlType::kK3, 1.0).value, 0.3678794412);
  expect_golden(kl_estimate(KlType::kK3, -1.0).value, 0.7182818285);
  expect_golden(unbiased_kl(KlType::kK3, 0.2, 0.3).value, 0.02528387201);
}

TEST(TokenLossTest, KlEstimatesHaveTheExpectationOfTheDivergence) {
  const double p[] = {0.5, 0.3, 0.2};
  const double q[] = {0.4, 0.4, 0.2};
  double exact = 0.0;
  double k1 = 0.0;
  double k2 = 0.0;
  double k3 = 0.0;
  for (int i = 0; i < 3; ++i) {
    const double d = std::log(p[i] / q[i]);
    exact += p[i] * d;
    k1 += p[i] * kl_estimate(KlType::kK1, d).value;
    k2 += p[i] * kl_estimate(KlType::kK2, d).value;
    k3 += p[i] * kl_estimate(KlType::kK3, d).value;
  }
  expect_golden(exact, 0.02526715392);
  expect_golden(k1, 0.02526715392);
  expect_golden(k3, 0.02526715392);
  expect_golden(k2, 0.02486240734);
}

TEST(TokenLossTest, GradientOfUnbiasedK3IsThatOfTheDivergence) {
  // Three tokens, the policy softmax(z); sampled from itself, so the ratio is 1. The expectation of
  // the score times the estimator's derivative must be the gradient of the exact divergence.
  const double z[] = {0.3, -0.4, 0.9};
  const double ref[] = {std::log(0.2), std::log(0.5), std::log(0.3)};
  const auto policy = [](const double* logits) {
    std::vector<double> p(3);
    double sum = 0.0;
    for (size_t i = 0; i < 3; ++i) {
      p[i] = std::exp(logits[i]);
      sum += p[i];
    }
    for (double& value : p) {
      value /= sum;
    }
    return p;
  };
  const std::vector<double> p = policy(z);
  for (size_t v = 0; v < 3; ++v) {
    double expected = 0.0;
    for (size_t i = 0; i < 3; ++i) {
      const double score = (i == v ? 1.0 : 0.0) - p[v];
      const KlTerm term = unbiased_kl(KlType::kK3, std::log(p[i]) - ref[i], 0.0);
      expected += p[i] * term.derivative * score;
    }
    const auto divergence = [&](double value) {
      double logits[] = {z[0], z[1], z[2]};
      logits[v] = value;
      const std::vector<double> q = policy(logits);
      double sum = 0.0;
      for (size_t i = 0; i < 3; ++i) {
        sum += q[i] * (std::log(q[i]) - ref[i]);
      }
      return sum;
    };
    EXPECT_NEAR(expected, slope(divergence, z[v]), 1e-8);
  }
}

TEST(TokenLossTest, CispoAndValueClipGiveTheListedValues) {
  const SurrogateTerm term = cispo(-0.7, 0.3, 1.0, {1.0, 0.28, std::nullopt});
  expect_golden(term.loss, 0.896);
  expect_golden(term.derivative, -1.28);
  EXPECT_TRUE(term.clipped);
  expect_golden(clipped_value(0.9, 0.5, 1.2, 0.2).loss, 0.125);
  EXPECT_TRUE(clipped_value(0.9, 0.5, 1.2, 0.2).clipped);
  EXPECT_EQ(clipped_value(0.9, 0.5, 1.2, 0.2).derivative, 0.0);
}

TEST(TokenLossTest, HugeLogRatiosStayFiniteAndHaveNoSlope) {
  for (const double log_ratio : {20.5, 1e3, 1e300, -20.5, -1e3, -1e300}) {
    for (const double advantage : {1.0, -1.0}) {
      const SurrogateTerm term = clipped_surrogate(log_ratio, advantage, {});
      EXPECT_TRUE(std::isfinite(term.loss));
      EXPECT_EQ(term.derivative, 0.0);
    }
    EXPECT_TRUE(std::isfinite(kl_estimate(KlType::kLowVar, log_ratio).value));
    EXPECT_EQ(kl_estimate(KlType::kLowVar, log_ratio).derivative, 0.0);
    EXPECT_TRUE(std::isfinite(unbiased_kl(KlType::kLowVar, 0.1, log_ratio).value));
  }
  EXPECT_EQ(kl_estimate(KlType::kLowVar, -30.0).value, 10.0);
  EXPECT_EQ(kl_estimate(KlType::kLowVar, 30.0).value, 10.0);
}

TEST(TokenLossTest, SlopesAtKinksAreOneSided) {
  const ClipRange range{0.2, 0.28, 3.0};
  const double low = std::log(0.8);
  const double high = std::log(1.28);
  const double cap = std::log(3.0);
  const auto loss = [&](double advantage) {
    return [&range, advantage](double x) { return clipped_surrogate(x, advantage, range).loss; };
  };
  EXPECT_NEAR(one_sided(loss(1.0), high, -1.0), -1.28, 1e-6);
  EXPECT_NEAR(one_sided(loss(1.0), high, 1.0), 0.0, 1e-6);
  EXPECT_NEAR(one_sided(loss(-1.0), low, 1.0), 0.8, 1e-6);
  EXPECT_NEAR(one_sided(loss(-1.0), low, -1.0), 0.0, 1e-6);
  EXPECT_NEAR(one_sided(loss(-1.0), cap, -1.0), 3.0, 1e-6);
  EXPECT_NEAR(one_sided(loss(-1.0), cap, 1.0), 0.0, 1e-6);
  // Just inside and outside of each, the derivative is that of its side.
  EXPECT_NEAR(clipped_surrogate(high - 1e-9, 1.0, range).derivative, -1.28, 1e-6);
  EXPECT_EQ(clipped_surrogate(high + 1e-9, 1.0, range).derivative, 0.0);
  EXPECT_NEAR(clipped_surrogate(low + 1e-9, -1.0, range).derivative, 0.8, 1e-6);
  EXPECT_EQ(clipped_surrogate(low - 1e-9, -1.0, range).derivative, 0.0);
  EXPECT_NEAR(clipped_surrogate(cap - 1e-9, -1.0, range).derivative, 3.0, 1e-6);
  EXPECT_EQ(clipped_surrogate(cap + 1e-9, -1.0, range).derivative, 0.0);
}

TEST(TokenLossTest, TiesTakeTheUnclippedBranch) {
  const ClipRange on_edge{0.0, 0.0, std::nullopt};  // ratio 1 is both edges
  for (const double advantage : {1.0, -1.0}) {
    const SurrogateTerm term = clipped_surrogate(0.0, advantage, on_edge);
    EXPECT_FALSE(term.clipped);
    EXPECT_EQ(term.derivative, -advantage);
  }
  EXPECT_FALSE(clipped_surrogate(5.0, 0.0, {}).clipped);
}

double in_range(int code, double low, double high) {
  return low + (high - low) * (static_cast<double>(code) + 0.5) / 100000.0;
}

RC_GTEST_PROP(TokenLossPropertyTest, DerivativesAreSlopes, ()) {
  const auto number = rc::gen::inRange(0, 100000);
  const double x = in_range(*number, -1.5, 1.5);
  const double advantage = in_range(*number, -2.0, 2.0);
  const double low = in_range(*number, 0.05, 0.5);
  const double high = in_range(*number, 0.05, 0.5);
  const double cap = in_range(*number, 1.6, 3.5);
  for (const double kink : {std::log(1.0 - low), std::log(1.0 + high), std::log(cap)}) {
    RC_PRE(std::abs(x - kink) > 1e-3);
  }
  const auto close = [](double derivative, double measured) {
    RC_ASSERT(std::abs(derivative - measured) <= 1e-6 * std::max(1.0, std::abs(derivative)));
  };
  const ClipRange range{low, high, cap};
  close(clipped_surrogate(x, advantage, range).derivative,
        slope([&](double v) { return clipped_surrogate(v, advantage, range).loss; }, x));
  for (const KlType type : {KlType::kK1, KlType::kK2, KlType::kK3, KlType::kLowVar}) {
    const auto plain = [&](double v) { return kl_estimate(type, v).value; };
    close(kl_estimate(type, x).derivative, slope(plain, x));
    // l moves both the estimate and the ratio.
    const double offset = in_range(*number, -0.5, 0.5);
    const auto weighted = [&](double v) { return unbiased_kl(type, v, v + offset).value; };
    close(unbiased_kl(type, x, x + offset).derivative, slope(weighted, x));
  }
  const double old_value = in_range(*number, -1.0, 1.0);
  const double target = in_range(*number, -1.0, 1.0);
  const double eps = 0.2;
  RC_PRE(std::abs(std::abs(x - old_value) - eps) > 1e-3);
  RC_PRE(std::abs(std::abs(x - target) -
                  std::abs(std::clamp(x, old_value - eps, old_value + eps) - target)) > 1e-3 ||
         std::abs(x - old_value) < eps);
  const auto value_loss = [&](double v) { return clipped_value(v, old_value, target, eps).loss; };
  close(clipped_value(x, old_value, target, eps).derivative, slope(value_loss, x));
  // CISPO holds its weight still: the slope in l at a fixed ratio.
  const auto held = [&](double v) { return cispo(v, x, advantage, range).loss; };
  close(cispo(-0.7, x, advantage, range).derivative, slope(held, -0.7));
}

}  // namespace
}  // namespace baleen::policy
