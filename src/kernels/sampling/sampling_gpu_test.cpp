#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/sampling/draft_verification.h"
#include "kernels/sampling/sampling_batch_case.h"
#include "kernels/sampling/sampling_oracle.h"
#include "kernels/testing/gpu_test.h"

namespace baleen::kernels {
namespace {

using testing::SamplingCase;
using SamplingGpu = testing::GpuTest;
using SamplingGpuSmall = testing::GpuTest;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

testing::SampleFunction sm90(int blocks = 0) {
  return [blocks](const SamplingBatch& batch, cudaStream_t stream) {
    sample_rows_sm90(batch, stream, blocks);
  };
}

std::vector<float> random_logits(std::mt19937& random, int32_t vocab, float scale, bool with_ties) {
  std::normal_distribution<float> normal(0.0F, scale);
  std::vector<float> logits(static_cast<size_t>(vocab));
  for (float& logit : logits) {
    logit = with_ties ? std::round(normal(random)) : normal(random);
  }
  return logits;
}

/// 2e-6 + 1e-6 |log-prob|: ex2.approx 2^-22 and FP32 sums of 1,024 terms in the normaliser.
void expect_logprob(float got, double want, const std::string& where) {
  if (std::isinf(want)) {
    EXPECT_EQ(got, static_cast<float>(want)) << where;
  } else {
    EXPECT_NEAR(got, want, 2e-6 + 1e-6 * std::fabs(want)) << where;
  }
}

void expect_rows(const SamplingCase& c, const char* what) {
  int shown = 0;
  for (size_t r = 0; r < c.rows.size() && shown < 8; ++r) {
    const std::string where = std::string(what) + " vocab " + std::to_string(c.vocab) + " row " +
                              std::to_string(r) + " k " + std::to_string(c.rows[r].params.top_k) +
                              " p " + std::to_string(c.rows[r].params.top_p) + " min_p " +
                              std::to_string(c.rows[r].params.min_p) + " T " +
                              std::to_string(c.rows[r].params.temperature);
    std::vector<ScoredToken> top;
    const SampledToken want = c.expected(r, &top);
    const SampledRow& got = c.sampled[r];
    EXPECT_EQ(got.status, static_cast<int32_t>(want.status)) << where;
    if (want.status != SamplingStatus::kDrawn) {
      continue;
    }
    EXPECT_EQ(got.id, want.id) << where;
    shown += got.id != want.id ? 1 : 0;
    expect_logprob(got.logprob, want.logprob, where);
    EXPECT_EQ(got.num_top, static_cast<int32_t>(top.size())) << where;
    for (size_t i = 0; i < top.size(); ++i) {
      const size_t at = r * kMostTopLogprobs + i;
      EXPECT_EQ(c.top_ids[at], top[i].id) << where << " place " << i;
      expect_logprob(c.top_logprobs[at], top[i].logprob, where);
    }
  }
}

SamplingCase mixed_case(int32_t vocab, int num_rows, uint32_t seed) {
  std::mt19937 random(seed);
  SamplingCase c(vocab);
  for (int i = 0; i < num_rows; ++i) {
    SamplingCase::HostRow row;
    row.logits = random_logits(random, vocab, 3.0F, i % 3 == 0);
    const auto pick = [&] { return static_cast<int32_t>(random() % static_cast<uint32_t>(vocab)); };
    const std::array<float, 4> top_ps = {1e-6F, 0.5F, 0.95F, 1.0F};
    const std::array<int32_t, 4> top_ks = {-1, 1, vocab, pick() + 1};
    const std::array<float, 4> temperatures = {0.0F, 0.3F, 1.0F, 2.0F};
    row.params.temperature = temperatures[random() % 4];
    row.params.top_k = top_ks[random() % 4];
    row.params.top_p = top_ps[random() % 4];
    row.params.min_p = i % 4 == 0 ? 0.3F : 0.0F;
    row.params.seed = random();
    row.params.sample_index = static_cast<int32_t>(random() % 5);
    row.params.position = static_cast<int64_t>(random() % 1000);
    row.params.top_logprobs = static_cast<int32_t>(random() % 6);
    if (i % 2 == 0) {
      row.counts.assign(static_cast<size_t>(vocab), 0);
      row.counts[static_cast<size_t>(pick())] = 3;
      row.params.repetition_penalty = 1.3F;
      row.params.frequency_penalty = 0.4F;
      row.params.presence_penalty = -0.7F;
    }
    if (i % 6 == 4 || i % 6 == 3) {
      row.params.repetition_penalty = 1.7F;
      row.chain = {pick(), pick(), pick()};
      row.chain.push_back(row.chain[0]);
    }
    if (vocab > 2) {
      row.bias = {{pick(), 1.5F}, {pick(), -20.0F}};
      row.bias.push_back({row.bias[0].first, 0.25F});
      row.forbidden = {pick()};
      if (i % 5 == 0 && row.forbidden[0] != 1) {
        row.allowed.assign(static_cast<size_t>((vocab + 31) / 32), 0xFFFFFFFEU);
      }
    }
    c.add(std::move(row));
  }
  return c;
}

TEST_F(SamplingGpuSmall, EqualsTheRowKernel) {
  for (const int32_t vocab : {1, 2, 31, 32, 33, 300, 1009, 1024, 1025}) {
    SamplingCase c = mixed_case(vocab, 48, 11 + static_cast<uint32_t>(vocab));
    c.run(sm90(), stream());
    expect_rows(c, "sm90");
    c.run(sample_rows_portable, stream());
    expect_rows(c, "portable");
  }
}

TEST_F(SamplingGpuSmall, EqualsTheOracle) {
  SamplingCase c = mixed_case(300, 60, 5);
  c.run(sm90(), stream());
  for (size_t r = 0; r < c.rows.size(); ++r) {
    SamplingParams params = c.rows[r].params;
    params.logit_bias = c.rows[r].bias;
    params.forbidden_ids = c.rows[r].forbidden;
    params.allowed_bits = c.rows[r].allowed;
    if (!c.rows[r].chain.empty()) {
      continue;  // counts of the chain are not an oracle's input
    }
    const SamplingOracle oracle = sampling_oracle(c.rows[r].logits, params, c.rows[r].counts);
    EXPECT_EQ(c.sampled[r].id, oracle.drawn) << "row " << r;
  }
}

TEST_F(SamplingGpu, FullVocabularyEqualsTheRowKernel) {
  std::mt19937 random(3);
  SamplingCase c(129'280);
  const std::vector<SamplingParams> kinds = {
      {},
      {.temperature = 0.0F},
      {.temperature = 0.7F, .top_k = 40, .top_p = 0.95F},
      {.top_k = 1},
      {.top_k = 1024},
      {.top_k = 1025},
      {.top_k = 5000, .top_p = 0.9F},
      {.top_p = 0.95F},
      {.temperature = 0.4F, .top_p = 0.5F},
      {.temperature = 2.0F, .min_p = 0.05F},
      {.top_k = 100, .top_p = 0.8F, .min_p = 0.2F},
      {.temperature = 1e-6F},
      {.top_p = 1e-6F},
  };
  for (size_t i = 0; i < kinds.size() * 3; ++i) {
    SamplingCase::HostRow row;
    row.params = kinds[i % kinds.size()];
    row.params.seed = 100 + i;
    row.params.position = static_cast<int64_t>(i) * 1000;
    row.params.top_logprobs = i % 2 == 0 ? 20 : 0;
    row.logits = random_logits(random, c.vocab, i < kinds.size() ? 1.0F : 3.0F, i % 5 == 4);
    c.add(std::move(row));
  }
  c.run(sm90(), stream());
  expect_rows(c, "sm90");
}

TEST_F(SamplingGpu, EqualLogitsGoToLowerIds) {
  SamplingCase c(129'280);
  const std::vector<SamplingParams> kinds = {{.temperature = 0.0F, .top_logprobs = 3},
                                             {.top_k = 3, .top_logprobs = 5},
                                             {.top_k = 700},
                                             {.top_k = 3000, .top_logprobs = 20},
                                             {.top_p = 0.09F},
                                             {.top_k = 3000, .top_p = 0.5F},
                                             {.top_k = 40, .top_p = 0.5F},
                                             {.min_p = 1.0F}};
  for (size_t i = 0; i < kinds.size() * 4; ++i) {
    SamplingCase::HostRow row;
    row.params = kinds[i % kinds.size()];
    row.params.seed = i;
    row.logits.assign(static_cast<size_t>(c.vocab), 1.25F);
    if (i / kinds.size() == 1) {  // two kinds of zero are one number
      for (size_t at = 0; at < row.logits.size(); ++at) {
        row.logits[at] = at % 3 == 0 ? -0.0F : 0.0F;
      }
    }
    if (i / kinds.size() == 2) {
      row.logits[77'777] = 2.5F;
    }
    c.add(std::move(row));
  }
  c.run(sm90(), stream());
  expect_rows(c, "ties");
}

TEST_F(SamplingGpuSmall, EdgesOfValues) {
  const int32_t vocab = 1500;
  SamplingCase c(vocab);
  const auto add = [&](std::vector<float> logits, SamplingParams params) {
    SamplingCase::HostRow row;
    row.logits = std::move(logits);
    row.params = params;
    c.add(std::move(row));
  };
  std::vector<float> one(vocab, -kInf);
  one[1400] = -50.0F;
  add(one, {.top_logprobs = 4});
  add(one, {.temperature = 0.0F});
  add(one, {.top_k = 40, .top_p = 0.95F});
  std::vector<float> plain(vocab, 0.0F);
  plain[3] = 7.0F;
  for (const float wrong : {kNan, kInf}) {
    std::vector<float> bad = plain;
    bad[1200] = wrong;
    add(bad, {});
    add(bad, {.temperature = 0.0F});
  }
  add(std::vector<float>(vocab, -kInf), {});
  std::vector<float> lonely(vocab, -kInf);
  lonely[2] = kNan;
  lonely[1450] = 1.0F;
  add(lonely, {.top_k = 5});
  add(plain, {.forced_id = 5, .top_logprobs = 2});
  add(plain, {.temperature = 1e-38F});
  add(plain, {.temperature = 1e30F, .seed = 4});
  SamplingCase::HostRow none;
  none.logits = plain;
  none.allowed.assign(static_cast<size_t>((vocab + 31) / 32), 0U);
  c.add(none);
  for (const auto& run : {sm90(), testing::SampleFunction(sample_rows_portable)}) {
    c.run(run, stream());
    expect_rows(c, "edges");
    EXPECT_EQ(c.sampled[3].id, 3) << "a flagged row carries the best finite token";
    EXPECT_EQ(c.sampled[7].id, -1);
  }
}

TEST_F(SamplingGpuSmall, PenaltyThatOverflowsKeepsLogprobsFinite) {
  SamplingCase c(4);
  for (const float temperature : {0.0F, 1e-6F, 1.0F}) {
    SamplingCase::HostRow row;
    row.logits = {8.0F, 9.0F, -1.0F, 2.0F};
    row.counts = {1, 2, 1, 0};
    row.params.temperature = temperature;
    row.params.repetition_penalty = 1e-38F;
    row.params.top_logprobs = 4;
    c.add(row);
  }
  c.run(sm90(), stream());
  expect_rows(c, "overflow");
}

TEST_F(SamplingGpu, BitsDependOnTheRowAlone) {
  SamplingCase c = mixed_case(129'280, 12, 77);
  c.run(sm90(8), stream());
  const std::vector<SampledRow> first = c.sampled;
  for (const int blocks : {2, 4}) {
    c.run(sm90(blocks), stream());
    EXPECT_EQ(std::memcmp(first.data(), c.sampled.data(), first.size() * sizeof(first[0])), 0)
        << "blocks " << blocks;
  }
  SamplingCase alone(129'280);  // the same row at another place of another batch
  alone.add(c.rows[7]);
  alone.run(sm90(), stream());
  EXPECT_EQ(std::memcmp(&alone.sampled[0], &first[7], sizeof(first[7])), 0);
  int differing = 0;
  const auto repeat = [&](const SamplingBatch& batch, cudaStream_t s) {
    std::vector<SampledRow> got(first.size());
    for (int i = 0; i < 1000; ++i) {
      sample_rows_sm90(batch, s);
      if (i % 40 == 0 || i == 999) {
        BALEEN_CUDA_CHECK(cudaMemcpyAsync(
            got.data(), batch.sampled, got.size() * sizeof(got[0]), cudaMemcpyDeviceToHost, s));
        BALEEN_CUDA_CHECK(cudaStreamSynchronize(s));
        differing += std::memcmp(got.data(), first.data(), got.size() * sizeof(got[0])) != 0;
      }
    }
  };
  c.run(repeat, stream());
  EXPECT_EQ(differing, 0);
}

TEST_F(SamplingGpu, MillionDrawsFollowTheLaw) {
  const std::vector<float> logits = {0.3F, -1.0F, 2.0F, 1.9F, -3.0F, 0.0F, 1.0F, 0.5F};
  const std::vector<SamplingParams> kinds = {
      {.seed = 1},
      {.temperature = 1.5F, .top_k = 6, .top_p = 0.9F, .min_p = 0.1F, .seed = 7},
      {.top_p = 0.7F, .seed = 5}};
  constexpr int kDrawRows = 50'000;
  for (const SamplingParams& kind : kinds) {
    std::vector<double> seen(logits.size());
    for (int round = 0; round < 20; ++round) {
      SamplingCase c(8);
      for (int i = 0; i < kDrawRows; ++i) {
        SamplingCase::HostRow row;
        row.logits = logits;
        row.params = kind;
        row.params.position = round * kDrawRows + i;
        c.add(std::move(row));
      }
      c.run(sm90(2), stream());
      for (const SampledRow& row : c.sampled) {
        seen[static_cast<size_t>(row.id)] += 1;
      }
    }
    const SamplingOracle oracle = sampling_oracle(logits, kind, {});
    double statistic = 0.0;
    int freedom = -1;
    for (size_t i = 0; i < logits.size(); ++i) {
      const double want = oracle.law[i] * kDrawRows * 20;
      if (want == 0.0) {
        EXPECT_EQ(seen[i], 0) << "token " << i;
        continue;
      }
      statistic += (seen[i] - want) * (seen[i] - want) / want;
      ++freedom;
    }
    const double h = 2.0 / (9.0 * freedom);  // upper 1e-6 quantile, Wilson and Hilferty
    EXPECT_LT(statistic, freedom * std::pow(1.0 - h + 4.753 * std::sqrt(h), 3.0));
  }
}

TEST_F(SamplingGpuSmall, DraftsStandUntilTheFirstDifference) {
  std::mt19937 random(9);
  for (const int chain_len : {1, 2, 4, 6, 32}) {
    const int requests = 37;
    std::vector<SampledRow> sampled(static_cast<size_t>(requests * chain_len));
    std::vector<int32_t> chain(sampled.size());
    for (size_t i = 0; i < sampled.size(); ++i) {
      sampled[i] = {static_cast<int32_t>(random() % 19 == 0 ? SamplingStatus::kNotFinite
                                                            : SamplingStatus::kDrawn),
                    static_cast<int32_t>(random() % 2),
                    0.0F,
                    0};
      chain[i] = static_cast<int32_t>(random() % 2);
    }
    for (int r = 0; r < 3; ++r) {  // full acceptance
      for (int i = 0; i + 1 < chain_len; ++i) {
        const auto at = static_cast<size_t>(r * chain_len + i);
        sampled[at].status = 0;
        chain[at + 1] = sampled[at].id;
      }
    }
    std::vector<int32_t> counts_rows(static_cast<size_t>(requests));
    for (int r = 0; r < requests; ++r) {
      counts_rows[static_cast<size_t>(r)] = r % 5 == 0 ? -1 : requests - 1 - r;
    }
    auto d_sampled = device::Buffer<SampledRow>::from_host(sampled);
    auto d_chain = device::Buffer<int32_t>::from_host(chain);
    auto d_rows = device::Buffer<int32_t>::from_host(counts_rows);
    auto d_lengths = device::Buffer<int32_t>::from_host(
        std::vector<int32_t>(static_cast<size_t>(requests), 100));
    device::Buffer<int32_t> d_accepted(requests), d_next(requests), d_status(requests);
    device::Buffer<int32_t> d_tokens(requests * chain_len), d_counts(requests * 4);
    d_counts.fill_bytes(0);
    d_tokens.fill_bytes(0x5A);
    verify_drafts({.sampled = d_sampled.data(),
                   .chain = d_chain.data(),
                   .chain_len = chain_len,
                   .num_requests = requests,
                   .accepted = d_accepted.data(),
                   .next_ids = d_next.data(),
                   .tokens = d_tokens.data(),
                   .lengths = d_lengths.data(),
                   .statuses = d_status.data(),
                   .counts = d_counts.data(),
                   .counts_stride = 4,
                   .counts_rows = d_rows.data()},
                  stream());
    synchronize();
    std::vector<int32_t> counts(static_cast<size_t>(requests) * 4, 0);
    for (int r = 0; r < requests; ++r) {
      const auto base = static_cast<size_t>(r * chain_len);
      int accepted = 0;
      int32_t status = 0;
      for (bool goes_on = true; goes_on; ++accepted) {
        const SampledRow& row = sampled[base + static_cast<size_t>(accepted)];
        if (counts_rows[static_cast<size_t>(r)] >= 0) {
          ++counts[static_cast<size_t>(counts_rows[static_cast<size_t>(r)] * 4 + row.id)];
        }
        status = row.status;
        goes_on = row.status == 0 && accepted + 1 < chain_len &&
                  chain[base + static_cast<size_t>(accepted) + 1] == row.id;
      }
      const auto at = static_cast<size_t>(r);
      EXPECT_EQ(d_accepted.to_host()[at], accepted) << "chain " << chain_len << " request " << r;
      EXPECT_EQ(d_next.to_host()[at], sampled[base + static_cast<size_t>(accepted) - 1].id);
      EXPECT_EQ(d_lengths.to_host()[at], 100 + accepted);
      EXPECT_EQ(d_status.to_host()[at], status);
    }
    EXPECT_EQ(d_counts.to_host(), counts);
    const std::vector<int32_t> tokens = d_tokens.to_host();
    const std::vector<int32_t> all = d_accepted.to_host();
    for (size_t i = 0; i < tokens.size(); ++i) {
      const bool stands = static_cast<int32_t>(i % static_cast<size_t>(chain_len)) <
                          all[i / static_cast<size_t>(chain_len)];
      EXPECT_EQ(tokens[i], stands ? sampled[i].id : -1);
    }
  }
}

TEST_F(SamplingGpu, SpeculationGivesTheTokensOfThePlainRun) {
  // A chain of four with drafts that are right half of the time, penalties advanced per position.
  const int32_t vocab = 2000;
  std::mt19937 random(21);
  for (int trial = 0; trial < 20; ++trial) {
    SamplingCase::HostRow base;
    base.params = {.temperature = 0.9F, .top_k = 8, .repetition_penalty = 1.5F, .seed = random()};
    base.counts.assign(vocab, 0);
    std::vector<std::vector<float>> logits;  // after each token of the true continuation
    for (int i = 0; i < 4; ++i) {
      logits.push_back(random_logits(random, vocab, 0.5F, false));
    }
    std::vector<int32_t> plain;
    std::vector<int32_t> counts(vocab, 0);
    for (int i = 0; i < 4; ++i) {
      SamplingCase one(vocab);
      SamplingCase::HostRow row = base;
      row.logits = logits[static_cast<size_t>(i)];
      row.counts = counts;
      row.params.position = 50 + i;
      one.add(row);
      one.run(sm90(), stream());
      plain.push_back(one.sampled[0].id);
      ++counts[static_cast<size_t>(plain.back())];
    }
    std::vector<int32_t> chain = {7};  // [verified, drafts]
    for (int i = 0; i < 3; ++i) {
      chain.push_back(random() % 2 == 0 ? plain[static_cast<size_t>(i)] : 13);
    }
    SamplingCase verify(vocab);
    for (int i = 0; i < 4; ++i) {
      SamplingCase::HostRow row = base;
      row.logits = logits[static_cast<size_t>(i)];
      row.chain.assign(chain.begin() + 1, chain.begin() + 1 + i);
      row.params.position = 50 + i;
      verify.add(row);
    }
    verify.run(sm90(), stream());
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(verify.sampled[static_cast<size_t>(i)].id, plain[static_cast<size_t>(i)])
          << "trial " << trial << " position " << i;
      if (i + 1 < 4 && chain[static_cast<size_t>(i) + 1] != plain[static_cast<size_t>(i)]) {
        break;  // positions after a wrong draft saw another text
      }
    }
  }
}

}  // namespace
}  // namespace baleen::kernels
