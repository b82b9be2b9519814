// Drafted texts follow the law of the plain run: with coupled draws token by token, with rejection
// sampling in distribution, for every sampling field, over two tokens of which the second depends
// on the first.

#include "runner/chain_sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/sampling/sampling_oracle.h"

namespace baleen::runner {
namespace {

using engine::RowResult;
using engine::SamplingRow;

constexpr int32_t kVocab = 8;
constexpr int64_t kPosition = 40;  // of the first drawn token
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Logits of target and drafter behind each token; the drafter is near the target, not equal.
struct TinyModels {
  std::array<std::vector<float>, kVocab + 1> target;  // behind token t; [kVocab]: behind the prompt
  std::array<std::vector<float>, kVocab + 1> drafter;

  explicit TinyModels(float distance) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal(0.0F, 1.0F);
    for (size_t t = 0; t <= kVocab; ++t) {
      for (int32_t i = 0; i < kVocab; ++i) {
        target[t].push_back(1.3F * normal(random));
        drafter[t].push_back(target[t].back() + distance * normal(random));
      }
    }
  }
};

kernels::SamplingParams params_of(const SamplingRow& row, int64_t position) {
  kernels::SamplingParams params;
  params.temperature = row.temperature;
  params.top_k = row.top_k;
  params.top_p = row.top_p;
  params.min_p = row.min_p;
  params.frequency_penalty = row.frequency_penalty;
  params.presence_penalty = row.presence_penalty;
  params.repetition_penalty = row.repetition_penalty;
  params.seed = row.seed;
  params.sample_index = row.sample_index;
  params.position = position;
  params.logit_bias = row.logit_bias;
  params.forbidden_ids = row.forbidden_ids;
  return params;
}

/// Counts before the prompt's end: token 2 was generated twice, token 5 once.
std::vector<int32_t> counts_before() {
  return {0, 0, 2, 0, 0, 1, 0, 0};
}

/// The tokens of one text, drawn in verify steps of `num_drafts` drafts.
struct DraftedText {
  std::vector<int32_t> ids;
  int32_t first_drafts = 0;  // of the first step
  int32_t first_stood = 0;
};

DraftedText drafted_text(ChainSampler& sampler,
                         const TinyModels& models,
                         const SamplingRow& row,
                         int32_t num_drafts,
                         size_t length) {
  DraftedText text;
  std::vector<int32_t> counts = counts_before();
  DraftChain chain;
  while (text.ids.size() < length) {
    const int64_t position = kPosition + static_cast<int64_t>(text.ids.size());
    const auto behind = [&](int32_t index) {
      const int32_t token = index > 0          ? chain.ids[static_cast<size_t>(index) - 1]
                            : text.ids.empty() ? kVocab
                                               : text.ids.back();
      return static_cast<size_t>(token);
    };
    chain.clear();
    for (int32_t i = 0; i < num_drafts; ++i) {
      EXPECT_TRUE(sampler.propose(row, position, models.drafter[behind(i)], counts, chain));
    }
    ChainLogits logits;
    logits.row = [&](int32_t index) {
      return std::span<const float>(models.target[behind(index)]);
    };
    logits.first_position = position;
    RowResult result;
    sampler.accept(logits, row, chain, counts, result);
    if (text.ids.empty()) {
      text.first_drafts = num_drafts;
      text.first_stood = static_cast<int32_t>(result.ids.size()) - 1;
    }
    text.ids.insert(text.ids.end(), result.ids.begin(), result.ids.end());
  }
  return text;
}

/// Probability of every pair of first tokens, by the oracle.
std::vector<double> law_of_pairs(const TinyModels& models, const SamplingRow& row) {
  std::vector<double> law;
  std::vector<int32_t> counts = counts_before();
  const auto first =
      kernels::sampling_oracle(models.target[kVocab], params_of(row, kPosition), counts).law;
  for (size_t a = 0; a < kVocab; ++a) {
    ++counts[a];
    const auto second =
        kernels::sampling_oracle(models.target[a], params_of(row, kPosition + 1), counts).law;
    --counts[a];
    for (size_t b = 0; b < kVocab; ++b) {
      law.push_back(first[a] * second[b]);
    }
  }
  return law;
}

/// Upper 1e-6 quantile of chi-square, by the approximation of Wilson and Hilferty (within 1 %).
double chi_square_quantile(int freedom) {
  const double h = 2.0 / (9.0 * freedom);
  return freedom * std::pow(1.0 - h + 4.753 * std::sqrt(h), 3.0);
}

/// Pearson's statistic; cells that expect less than 5 are counted as one.
void expect_law(const std::vector<int>& seen, const std::vector<double>& law, int num_texts) {
  double statistic = 0.0;
  double rare_expected = 0.0;
  int rare_seen = 0;
  int freedom = -1;
  const auto add = [&](int count, double expected) {
    statistic += (count - expected) * (count - expected) / expected;
    ++freedom;
  };
  for (size_t i = 0; i < law.size(); ++i) {
    const double expected = law[i] * num_texts;
    if (expected == 0.0) {
      ASSERT_EQ(seen[i], 0) << "pair " << i << " is outside the kept set";
    } else if (expected < 5.0) {
      rare_expected += expected;
      rare_seen += seen[i];
    } else {
      add(seen[i], expected);
    }
  }
  if (rare_expected > 0.0) {
    add(rare_seen, std::max(rare_expected, 1.0));
  }
  ASSERT_GT(freedom, 0);
  EXPECT_LT(statistic, chi_square_quantile(freedom));
}

struct SamplingCase {
  const char* name;
  SamplingRow row;
  int num_texts = 30'000;
};

std::vector<SamplingCase> sampling_cases() {
  std::vector<SamplingCase> cases;
  const auto add = [&](const char* name) -> SamplingRow& {
    cases.push_back({name, {}});
    cases.back().row.accept_limit = 100;
    return cases.back().row;
  };
  add("temperature 1, top_p 0.9").top_p = 0.9F;
  cases.back().num_texts = 100'000;
  add("hot").temperature = 2.5F;
  add("cold").temperature = 0.4F;
  add("top_k").top_k = 3;
  add("min_p").min_p = 0.15F;
  add("frequency").frequency_penalty = 1.5F;
  add("presence").presence_penalty = -1.2F;
  add("repetition").repetition_penalty = 1.7F;
  add("bias and forbidden").logit_bias = {{1, 2.0F}, {3, -1.0F}};
  cases.back().row.forbidden_ids = {6};
  SamplingRow& all = add("all");
  all.temperature = 1.4F;
  all.top_k = 6;
  all.top_p = 0.92F;
  all.min_p = 0.03F;
  all.frequency_penalty = 0.7F;
  all.presence_penalty = 0.4F;
  all.repetition_penalty = 1.2F;
  all.logit_bias = {{4, 1.0F}};
  all.sample_index = 2;
  return cases;
}

TEST(ChainSamplerTest, DraftedPairsFollowTheLaw) {
  const TinyModels models(0.8F);
  for (const DraftSampling sampling : {DraftSampling::kCoupled, DraftSampling::kRejection}) {
    for (const SamplingCase& item : sampling_cases()) {
      SCOPED_TRACE(std::string(item.name) +
                   (sampling == DraftSampling::kCoupled ? ", coupled" : ", rejection"));
      ChainSampler sampler(sampling);
      std::vector<int> seen(static_cast<size_t>(kVocab * kVocab), 0);
      SamplingRow row = item.row;
      for (int i = 0; i < item.num_texts; ++i) {
        row.seed = static_cast<uint64_t>(i);
        const DraftedText text = drafted_text(sampler, models, row, 1 + i % 2, 2);
        ++seen[static_cast<size_t>(text.ids[0] * kVocab + text.ids[1])];
      }
      expect_law(seen, law_of_pairs(models, row), item.num_texts);
    }
  }
}

TEST(ChainSamplerTest, CoupledTextsAreThePlainTextsWhateverWasDrafted) {
  for (const float distance : {0.0F, 0.8F, 5.0F}) {
    const TinyModels models(distance);
    ChainSampler sampler(DraftSampling::kCoupled);
    int64_t stood = 0;
    int64_t drafted = 0;
    for (const SamplingCase& item : sampling_cases()) {
      for (const bool greedy : {false, true}) {
        SamplingRow row = item.row;
        row.temperature = greedy ? 0.0F : row.temperature;
        for (uint64_t seed = 0; seed < 40; ++seed) {
          row.seed = seed;
          std::vector<int32_t> plain = drafted_text(sampler, models, row, 0, 20).ids;
          for (const int32_t num_drafts : {1, 3, 8}) {
            DraftedText text = drafted_text(sampler, models, row, num_drafts, 20);
            text.ids.resize(20);  // the last step may go further
            ASSERT_EQ(text.ids, plain) << item.name << " seed " << seed << " drafts " << num_drafts;
            drafted += text.first_drafts;
            stood += text.first_stood;
          }
        }
      }
    }
    // A drafter that is the target is always right; a bad one is not, or the test shows nothing.
    EXPECT_EQ(stood == drafted, distance == 0.0F);
    EXPECT_GT(stood, 0);
  }
}

TEST(ChainSamplerTest, DraftsStandAsOftenAsTheLawsAllow) {
  const TinyModels models(0.8F);
  SamplingRow row;
  row.accept_limit = 100;
  const auto p =
      kernels::sampling_oracle(models.target[kVocab], params_of(row, kPosition), counts_before())
          .law;
  const auto q =
      kernels::sampling_oracle(models.drafter[kVocab], params_of(row, kPosition), counts_before())
          .law;
  double overlap = 0.0;  // 1 - total variation
  for (size_t i = 0; i < p.size(); ++i) {
    overlap += std::min(p[i], q[i]);
  }
  constexpr int kTexts = 40'000;
  const double deviation = std::sqrt(overlap * (1.0 - overlap) / kTexts);
  const auto rate = [&](DraftSampling sampling) {
    ChainSampler sampler(sampling);
    int stood = 0;
    for (int i = 0; i < kTexts; ++i) {
      row.seed = static_cast<uint64_t>(i);
      stood += drafted_text(sampler, models, row, 1, 1).first_stood;
    }
    return static_cast<double>(stood) / kTexts;
  };
  EXPECT_NEAR(rate(DraftSampling::kRejection), overlap, 5.0 * deviation);
  const double variation = 1.0 - overlap;
  EXPECT_GT(rate(DraftSampling::kCoupled), (1.0 - variation) / (1.0 + variation) - 5.0 * deviation);
}

/// A chain verified against targets that agree with it.
class AgreedChain {
 public:
  explicit AgreedChain(std::vector<int32_t> ids) {
    chain_.ids = std::move(ids);
    for (size_t i = 0; i <= chain_.ids.size(); ++i) {
      std::vector<float> logits(kVocab, 0.0F);
      logits[static_cast<size_t>(i < chain_.ids.size() ? chain_.ids[i] : 0)] = 4.0F;
      logits_.push_back(std::move(logits));
    }
    row_.temperature = 0.0F;
    row_.accept_limit = 100;
    row_.want_logprobs = true;
    row_.top_logprobs = 2;
  }

  RowResult accept(int32_t simulated = -1) {
    ChainSampler sampler(DraftSampling::kCoupled);
    ChainLogits logits;
    logits.row = [&](int32_t index) {
      return std::span<const float>(logits_[static_cast<size_t>(index)]);
    };
    logits.first_position = kPosition;
    logits.simulated_drafts = simulated;
    RowResult result;
    sampler.accept(logits, row_, chain_, counts_, result);
    return result;
  }

  DraftChain chain_;
  std::vector<std::vector<float>> logits_;
  std::vector<int32_t> counts_;
  SamplingRow row_;
};

TEST(ChainSamplerTest, AllDraftsAndOneTokenMoreCanStand) {
  AgreedChain chain({3, 3, 5});
  const RowResult result = chain.accept();
  EXPECT_EQ(result.ids, std::vector<int32_t>({3, 3, 5, 0}));
  ASSERT_EQ(result.logprobs.size(), 4U);
  ASSERT_EQ(result.top_logprobs.size(), 4U);
  const double expected = 4.0 - std::log(std::exp(4.0) + 7.0);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(result.logprobs[i], expected, 1e-6);
    ASSERT_EQ(result.top_logprobs[i].size(), 2U);
    EXPECT_EQ(result.top_logprobs[i][0].id, result.ids[i]);
  }
  EXPECT_TRUE(chain.counts_.empty());
}

TEST(ChainSamplerTest, PenaltiesCountTheDraftsBeforeThem) {
  AgreedChain chain({3, 3, 5});
  chain.row_.frequency_penalty = 1.5F;  // 4, then 2.5, then 1.0: always ahead of the others' 0
  RowResult result = chain.accept();
  EXPECT_EQ(result.ids, std::vector<int32_t>({3, 3, 5, 0}));
  EXPECT_EQ(chain.counts_, std::vector<int32_t>({1, 0, 0, 2, 0, 1, 0, 0}));
  EXPECT_LT(result.logprobs[1], result.logprobs[0]);
  AgreedChain steep({3, 3, 5});
  steep.row_.frequency_penalty = 4.5F;  // the second 3 falls behind
  result = steep.accept();
  EXPECT_EQ(result.ids, std::vector<int32_t>({3, 0}));
  EXPECT_EQ(steep.counts_, std::vector<int32_t>({1, 0, 0, 1, 0, 0, 0, 0}));
}

TEST(ChainSamplerTest, LimitsAndBadLogitsEndTheRun) {
  for (int32_t limit = 1; limit <= 6; ++limit) {
    AgreedChain chain({3, 4, 5});
    chain.row_.accept_limit = limit;
    EXPECT_EQ(chain.accept().ids.size(), static_cast<size_t>(std::min(limit, 4)));
  }
  for (size_t bad = 0; bad < 4; ++bad) {
    AgreedChain chain({3, 4, 5});
    chain.logits_[bad][2] = kNan;
    const RowResult result = chain.accept();
    EXPECT_EQ(result.nan_logits, bad == 0);
    EXPECT_EQ(result.ids.size(), bad);
  }
  // A forced token refuses a draft that is another, and lets one stand that is the same.
  AgreedChain forced({3});
  forced.row_.forced_id = 6;
  forced.row_.accept_limit = 1;
  EXPECT_EQ(forced.accept().ids, std::vector<int32_t>({6}));
}

TEST(ChainSamplerTest, SimulatedDraftsStandAgainstTheTarget) {
  AgreedChain chain({3, 4, 5});
  chain.chain_.ids = {7, 7, 7};
  EXPECT_EQ(chain.accept().ids, std::vector<int32_t>({3}));
  EXPECT_EQ(chain.accept(0).ids, std::vector<int32_t>({3}));
  EXPECT_EQ(chain.accept(2).ids, std::vector<int32_t>({7, 7, 5}));
  EXPECT_EQ(chain.accept(3).ids, std::vector<int32_t>({7, 7, 7, 0}));
  // Also against a target that would agree with more.
  AgreedChain agreed({3, 4, 5});
  EXPECT_EQ(agreed.accept(1).ids, std::vector<int32_t>({3, 4}));
}

TEST(ChainSamplerTest, DraftLogitsThatAreNotFiniteGiveNoDraft) {
  for (const DraftSampling sampling : {DraftSampling::kCoupled, DraftSampling::kRejection}) {
    ChainSampler sampler(sampling);
    SamplingRow row;
    DraftChain chain;
    std::vector<int32_t> counts;
    EXPECT_FALSE(
        sampler.propose(row, kPosition, std::vector<float>{0.0F, kNan, 1.0F}, counts, chain));
    EXPECT_TRUE(chain.ids.empty());
    EXPECT_TRUE(chain.laws.empty());
  }
}

}  // namespace
}  // namespace baleen::runner
