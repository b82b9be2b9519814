#include "kernels/sampling/sampling.h"

#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/sampling/sampling_oracle.h"

namespace baleen::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

SampledToken sample(std::span<const float> logits,
                    const SamplingParams& params,
                    std::span<const int32_t> counts = {}) {
  SamplingWorkspace workspace;
  std::vector<ScoredToken> top;
  return sample_token(logits, params, counts, workspace, &top);
}

std::vector<float> random_logits(std::mt19937& random, size_t vocab, float scale, bool with_ties) {
  std::normal_distribution<float> normal(0.0F, scale);
  std::vector<float> logits(vocab);
  for (float& logit : logits) {
    logit = with_ties ? std::round(normal(random)) : normal(random);
  }
  return logits;
}

/// Pearson's statistic of draws at positions 0 .. num_draws - 1 against the oracle's law.
double chi_square(std::span<const float> logits,
                  SamplingParams params,
                  int num_draws,
                  int& freedom) {
  SamplingWorkspace workspace;
  std::vector<int> seen(logits.size(), 0);
  for (int i = 0; i < num_draws; ++i) {
    params.position = i;
    ++seen[static_cast<size_t>(sample_token(logits, params, {}, workspace, nullptr).id)];
  }
  const SamplingOracle oracle = sampling_oracle(logits, params, {});
  double statistic = 0.0;
  freedom = -1;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double expected = oracle.law[i] * num_draws;
    if (expected == 0.0) {
      EXPECT_EQ(seen[i], 0) << "token " << i << " is outside the kept set";
      continue;
    }
    statistic += (seen[i] - expected) * (seen[i] - expected) / expected;
    ++freedom;
  }
  return statistic;
}

/// Upper 1e-6 quantile of chi-square, by the approximation of Wilson and Hilferty (within 1 %).
double chi_square_limit(int freedom) {
  const double f = freedom;
  const double h = 2.0 / (9.0 * f);
  return f * std::pow(1.0 - h + 4.753 * std::sqrt(h), 3.0);
}

TEST(SamplingTest, DrawsFollowTheLaw) {
  const std::vector<float> logits = {0.3F, -1.0F, 2.0F, 1.9F, -3.0F, 0.0F, 1.0F, 0.5F};
  const auto check = [&](const char* name, const SamplingParams& params, int num_draws) {
    int freedom = 0;
    const double statistic = chi_square(logits, params, num_draws, freedom);
    EXPECT_LT(statistic, chi_square_limit(freedom)) << name;
    EXPECT_GT(freedom, 0) << name;
  };
  check("plain", {.seed = 1}, 1'000'000);
  check("hot", {.temperature = 3.0F, .seed = 2}, 200'000);
  check("cold", {.temperature = 0.4F, .seed = 3}, 200'000);
  check("top_k", {.top_k = 3, .seed = 4}, 200'000);
  check("top_p", {.top_p = 0.7F, .seed = 5}, 200'000);
  check("min_p", {.min_p = 0.2F, .seed = 6}, 200'000);
  check("all three",
        {.temperature = 1.5F, .top_k = 6, .top_p = 0.9F, .min_p = 0.1F, .seed = 7},
        200'000);
}

TEST(SamplingTest, DrawsOfOtherSeedsAndSamplesAreIndependent) {
  // Pairs of draws that differ in one key alone: a 2 x 2 table of a fair coin has one degree of
  // freedom left for dependence.
  const std::vector<float> logits = {0.0F, 0.0F};
  for (const int kind : {0, 1, 2}) {
    std::array<double, 4> table{};
    constexpr int kDraws = 100'000;
    for (int i = 0; i < kDraws; ++i) {
      SamplingParams a{.seed = static_cast<uint64_t>(i), .sample_index = 3, .position = 7};
      SamplingParams b = a;
      b.seed += kind == 0 ? (uint64_t{1} << 40) : 0;
      b.sample_index += kind == 1 ? 1 : 0;
      b.position += kind == 2 ? 1 : 0;
      ++table[static_cast<size_t>(sample(logits, a).id * 2 + sample(logits, b).id)];
    }
    double statistic = 0.0;
    for (const double n : table) {
      statistic += (n - kDraws / 4.0) * (n - kDraws / 4.0) / (kDraws / 4.0);
    }
    EXPECT_LT(statistic, chi_square_limit(3)) << "kind " << kind;
  }
}

TEST(SamplingTest, EqualsTheOracle) {
  std::mt19937 random(11);
  const std::vector<size_t> sizes = {1, 2, 31, 32, 33, 300, 1009};
  for (int round = 0; round < 600; ++round) {
    const size_t vocab = sizes[random() % sizes.size()];
    const std::vector<float> logits = random_logits(random, vocab, 3.0F, round % 3 == 0);
    const auto pick = [&] { return static_cast<int32_t>(random() % vocab); };
    const std::array<float, 4> top_ps = {1e-6F, 0.5F, 0.95F, 1.0F};
    const std::array<int32_t, 4> top_ks = {-1, 1, static_cast<int32_t>(vocab), pick() + 1};
    const std::array<float, 4> temperatures = {0.0F, 0.3F, 1.0F, 2.0F};
    SamplingParams params;
    params.temperature = temperatures[random() % 4];
    params.top_k = top_ks[random() % 4];
    params.top_p = top_ps[random() % 4];
    params.min_p = round % 4 == 0 ? 0.3F : 0.0F;
    params.seed = random();
    params.sample_index = static_cast<int32_t>(random() % 5);
    params.position = static_cast<int64_t>(random() % 1000);
    params.want_logprob = true;
    params.top_logprobs = 5;
    std::vector<int32_t> counts;
    if (round % 2 == 0) {
      counts.assign(vocab, 0);
      counts[static_cast<size_t>(pick())] = 3;
      params.repetition_penalty = 1.3F;
      params.frequency_penalty = 0.4F;
      params.presence_penalty = -0.7F;
    }
    const std::vector<std::pair<int32_t, float>> bias = {{pick(), 1.5F}, {pick(), -20.0F}};
    const std::vector<int32_t> forbidden = {pick()};
    std::vector<uint32_t> mask((vocab + 31) / 32, 0xFFFFFFFEU);
    if (vocab > 2) {
      params.logit_bias = bias;
      params.forbidden_ids = forbidden;
      if (round % 5 == 0 && forbidden[0] != 1) {
        params.allowed_bits = mask;
      }
    }
    const SamplingOracle oracle = sampling_oracle(logits, params, counts);
    SamplingWorkspace workspace;
    std::vector<ScoredToken> top;
    const SampledToken token = sample_token(logits, params, counts, workspace, &top);
    ASSERT_EQ(token.status, SamplingStatus::kDrawn);
    ASSERT_EQ(token.id, oracle.drawn) << "round " << round << " vocab " << vocab;
    std::vector<TokenProbability> law;
    ASSERT_EQ(token_law(logits, params, counts, workspace, law), SamplingStatus::kDrawn);
    std::vector<double> dense(vocab, 0.0);
    for (const TokenProbability& kept : law) {
      dense[static_cast<size_t>(kept.id)] = kept.probability;
    }
    for (size_t i = 0; i < vocab; ++i) {
      ASSERT_NEAR(dense[i], oracle.law[i], 1e-12) << "round " << round << " token " << i;
    }
    // One rounding to float of a number up to 1e3 in magnitude: 2^-24 relative.
    const double expected = oracle.logprobs[static_cast<size_t>(token.id)];
    ASSERT_NEAR(token.logprob, expected, 1e-7 * std::max(1.0, std::fabs(expected)));
    std::vector<int32_t> order(vocab);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return oracle.logprobs[static_cast<size_t>(a)] > oracle.logprobs[static_cast<size_t>(b)];
    });
    for (size_t i = 0; i < top.size(); ++i) {
      ASSERT_EQ(top[i].id, order[i]) << "round " << round << " place " << i;
      const double best = oracle.logprobs[static_cast<size_t>(order[i])];
      ASSERT_NEAR(top[i].logprob, best, 1e-7 * std::max(1.0, std::fabs(best)));
    }
  }
}

TEST(SamplingTest, NucleusIsTheShortestRunThatReachesTopP) {
  const std::vector<float> logits = {
      std::log(0.1F), std::log(0.4F), std::log(0.3F), std::log(0.2F)};
  const auto kept = [&](SamplingParams params) {
    std::vector<int32_t> out;
    const SamplingOracle oracle = sampling_oracle(logits, params, {});
    SamplingWorkspace workspace;
    std::vector<int> seen(logits.size());
    for (params.position = 0; params.position < 2000; ++params.position) {
      ++seen[static_cast<size_t>(sample_token(logits, params, {}, workspace, nullptr).id)];
    }
    for (size_t i = 0; i < seen.size(); ++i) {
      EXPECT_EQ(seen[i] > 0, oracle.law[i] > 0);
      if (seen[i] > 0) {
        out.push_back(static_cast<int32_t>(i));
      }
    }
    return out;
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(kept({.top_p = 1e-6F}), Ids({1}));
  EXPECT_EQ(kept({.top_p = 0.39F}), Ids({1}));
  EXPECT_EQ(kept({.top_p = 0.41F}), Ids({1, 2}));
  EXPECT_EQ(kept({.top_p = 0.71F}), Ids({1, 2, 3}));
  EXPECT_EQ(kept({.top_p = 1.0F}), Ids({0, 1, 2, 3}));
  // Renormalised after top_k: 0.4 / 0.7 = 0.571.
  EXPECT_EQ(kept({.top_k = 2, .top_p = 0.56F}), Ids({1}));
  EXPECT_EQ(kept({.top_k = 2, .top_p = 0.58F}), Ids({1, 2}));
  EXPECT_EQ(kept({.top_k = 1}), Ids({1}));
  EXPECT_EQ(kept({.top_k = 4}), Ids({0, 1, 2, 3}));
  EXPECT_EQ(kept({.min_p = 0.45F}), Ids({1, 2, 3}));
  EXPECT_EQ(kept({.min_p = 0.55F}), Ids({1, 2}));
  EXPECT_EQ(kept({.min_p = 1.0F}), Ids({1}));
}

TEST(SamplingTest, TiesGoToTheLowerId) {
  const std::vector<float> equal(50, 1.25F);
  EXPECT_EQ(sample(equal, {.temperature = 0.0F}).id, 0);
  for (int64_t position = 0; position < 300; ++position) {
    EXPECT_LT(sample(equal, {.top_k = 3, .position = position}).id, 3);
    EXPECT_LT(sample(equal, {.top_p = 0.09F, .position = position}).id, 5);
  }
  std::vector<ScoredToken> top;
  SamplingWorkspace workspace;
  sample_token(equal, {.top_logprobs = 3}, {}, workspace, &top);
  ASSERT_EQ(top.size(), 3U);
  for (int32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(top[static_cast<size_t>(i)].id, i);
    EXPECT_FLOAT_EQ(top[static_cast<size_t>(i)].logprob, -std::log(50.0F));
  }
}

TEST(SamplingTest, LongFlatNucleusNeedsSeveralSortedRuns) {
  std::vector<float> logits(5000, 0.0F);
  logits[4999] = 2.0F;
  const SamplingParams params{.top_p = 0.5F, .seed = 9};
  const SamplingOracle oracle = sampling_oracle(logits, params, {});
  const auto num_kept =
      std::count_if(oracle.law.begin(), oracle.law.end(), [](double law) { return law > 0; });
  EXPECT_GT(num_kept, 2048);  // more than the first two runs
  SamplingParams each = params;
  for (each.position = 0; each.position < 50; ++each.position) {
    EXPECT_EQ(sample(logits, each).id, sampling_oracle(logits, each, {}).drawn);
  }
}

TEST(SamplingTest, TemperatureNearZeroIsGreedy) {
  std::mt19937 random(5);
  for (int round = 0; round < 50; ++round) {
    const std::vector<float> logits = random_logits(random, 40, 1.0F, false);
    const SamplingParams cold{.temperature = 1e-6F, .seed = random()};
    EXPECT_EQ(sample(logits, cold).id, sample(logits, {.temperature = 0.0F}).id);
  }
}

TEST(SamplingTest, GreedyReportsLogprobsAtTemperatureOne) {
  const std::vector<float> logits = {1.0F, 3.0F, 2.0F};
  const SampledToken token = sample(logits, {.temperature = 0.0F, .want_logprob = true});
  EXPECT_EQ(token.id, 1);
  const double sum = std::exp(-2.0) + 1.0 + std::exp(-1.0);
  EXPECT_NEAR(token.logprob, -std::log(sum), 1e-7);
}

TEST(SamplingTest, OnlyFiniteTokenIsTakenAndItsLogprobIsZero) {
  std::vector<float> logits(10, -kInf);
  logits[6] = -50.0F;
  SamplingWorkspace workspace;
  std::vector<ScoredToken> top;
  const SampledToken token =
      sample_token(logits, {.want_logprob = true, .top_logprobs = 4}, {}, workspace, &top);
  EXPECT_EQ(token.id, 6);
  EXPECT_EQ(token.logprob, 0.0F);
  EXPECT_EQ(top.size(), 1U);  // tokens at -inf are not listed
}

TEST(SamplingTest, FlagsLogitsThatAreNotFinite) {
  EXPECT_EQ(sample(std::vector<float>{0.0F, kNan}, {}).status, SamplingStatus::kNotFinite);
  EXPECT_EQ(sample(std::vector<float>{0.0F, kInf}, {}).status, SamplingStatus::kNotFinite);
  EXPECT_EQ(sample(std::vector<float>{kNan, 0.0F}, {.temperature = 0.0F}).status,
            SamplingStatus::kNotFinite);
  EXPECT_EQ(sample(std::vector<float>{0.0F, -kInf}, {}).status, SamplingStatus::kDrawn);
}

TEST(SamplingTest, TheLawFlagsWhatTheDrawFlags) {
  SamplingWorkspace workspace;
  std::vector<TokenProbability> law = {{3, 1.0}};
  EXPECT_EQ(token_law(std::vector<float>{0.0F, kNan}, {}, {}, workspace, law),
            SamplingStatus::kNotFinite);
  EXPECT_TRUE(law.empty());
  EXPECT_EQ(token_law(std::vector<float>{-kInf, -kInf}, {}, {}, workspace, law),
            SamplingStatus::kNoCandidate);
  EXPECT_EQ(token_law(std::vector<float>{1.0F, 2.0F}, {.forced_id = 0}, {}, workspace, law),
            SamplingStatus::kDrawn);
  ASSERT_EQ(law.size(), 1U);
  EXPECT_EQ(law[0].id, 0);
}

TEST(SamplingTest, NoiseOfAnotherStreamIsAnother) {
  const std::vector<float> logits(8, 0.0F);
  int equal = 0;
  for (int i = 0; i < 8000; ++i) {
    SamplingParams params{.seed = 5, .position = i};
    const int32_t id = sample(logits, params).id;
    params.stream = kSamplingStream + 1;
    equal += id == sample(logits, params).id ? 1 : 0;
  }
  // Independent draws agree 1000 times of 8000; the standard deviation is 29.6.
  EXPECT_NEAR(equal, 1000, 6 * 29.6);
}

TEST(SamplingTest, FlagsWhenNothingIsLeft) {
  const std::vector<float> logits = {0.0F, 1.0F};
  const std::vector<int32_t> both = {0, 1};
  const std::vector<uint32_t> none = {0};
  EXPECT_EQ(sample(logits, {.forbidden_ids = both}).status, SamplingStatus::kNoCandidate);
  EXPECT_EQ(sample(logits, {.allowed_bits = none}).status, SamplingStatus::kNoCandidate);
  EXPECT_EQ(sample(std::vector<float>{-kInf, -kInf}, {}).status, SamplingStatus::kNoCandidate);
}

TEST(SamplingTest, MaskAndForbiddenIdsAreNeverDrawn) {
  const std::vector<float> logits(70, 0.0F);
  const std::vector<uint32_t> bits = {0U, 0x10U, 0x20U};  // 36 and 69
  const std::vector<int32_t> forbidden = {36};
  for (int64_t position = 0; position < 100; ++position) {
    const int32_t masked = sample(logits, {.position = position, .allowed_bits = bits}).id;
    EXPECT_TRUE(masked == 36 || masked == 69);
    const SamplingParams both{
        .position = position, .forbidden_ids = forbidden, .allowed_bits = bits};
    EXPECT_EQ(sample(logits, both).id, 69);
  }
}

TEST(SamplingTest, ForcedTokenKeepsItsOwnLogprob) {
  const std::vector<float> logits = {0.0F, 5.0F};
  const SampledToken token = sample(logits, {.forced_id = 0, .want_logprob = true});
  EXPECT_EQ(token.id, 0);
  EXPECT_NEAR(token.logprob, -std::log1p(std::exp(5.0)), 1e-6);
}

TEST(SamplingTest, PenaltiesByHand) {
  // x: 2 -> 2/2 - 0.5*3 - 0.25 = -0.75; -1 -> -1*2 - 0.5*1 - 0.25 = -2.75; 0.5 unseen.
  const std::vector<float> logits = {2.0F, -1.0F, 0.5F};
  const std::vector<int32_t> counts = {3, 1, 0};
  SamplingParams params;
  params.frequency_penalty = 0.5F;
  params.presence_penalty = 0.25F;
  params.repetition_penalty = 2.0F;
  params.temperature = 0.0F;
  params.want_logprob = true;
  const SampledToken token = sample(logits, params, counts);
  EXPECT_EQ(token.id, 2);
  const double sum = std::exp(-0.75) + std::exp(-2.75) + std::exp(0.5);
  EXPECT_NEAR(token.logprob, 0.5 - std::log(sum), 1e-7);
}

TEST(SamplingTest, PenaltyThatOverflowsKeepsLogprobsFinite) {
  const std::vector<float> logits = {8.0F, 9.0F, -1.0F, 2.0F};
  const std::vector<int32_t> counts = {1, 2, 1, 0};
  for (const float temperature : {0.0F, 1e-6F, 1.0F}) {
    SamplingParams params;
    params.temperature = temperature;
    params.repetition_penalty = 1e-38F;  // 8 / 1e-38 is over the largest float32
    params.want_logprob = true;
    params.top_logprobs = 4;
    SamplingWorkspace workspace;
    std::vector<ScoredToken> top;
    const SampledToken token = sample_token(logits, params, counts, workspace, &top);
    EXPECT_EQ(token.status, SamplingStatus::kDrawn);
    EXPECT_EQ(token.id, sampling_oracle(logits, params, counts).drawn);
    EXPECT_FLOAT_EQ(token.logprob, -std::log(2.0F));  // the two that overflow are equal
    ASSERT_EQ(top.size(), 4U);
    EXPECT_EQ(top[0].id, 0);
    EXPECT_EQ(top[1].id, 1);
    for (const ScoredToken& entry : top) {
      EXPECT_FALSE(std::isnan(entry.logprob)) << "token " << entry.id;
    }
  }
}

TEST(SamplingTest, PlainLogprobEqualsLogSoftmax) {
  std::mt19937 random(3);
  const std::vector<float> logits = random_logits(random, 333, 4.0F, false);
  const SamplingOracle oracle = sampling_oracle(logits, {}, {});
  for (int32_t id = 0; id < 333; ++id) {
    EXPECT_NEAR(plain_logprob<float>(logits, id), oracle.logprobs[static_cast<size_t>(id)], 2e-6);
  }
}

TEST(SamplingTest, NoiseIsAFunctionOfItsFourNumbers) {
  // Known answers of the rule, computed apart from this code: they must never change, or seeds stop
  // meaning the same text.
  EXPECT_EQ(gumbel_noise(1, 0, 5, 9, kSamplingStream), gumbel_noise(1, 0, 5, 9, kSamplingStream));
  EXPECT_LE(gumbel_noise(1, 0, 5, 9, kSamplingStream), kLargestGumbel);
  const std::vector<float> logits(16, 0.0F);
  std::vector<int32_t> ids;
  for (int64_t position = 0; position < 8; ++position) {
    ids.push_back(sample(logits, {.seed = 42, .position = position}).id);
  }
  EXPECT_EQ(ids, std::vector<int32_t>({10, 12, 13, 8, 10, 1, 13, 3}));
}

}  // namespace
}  // namespace baleen::kernels
