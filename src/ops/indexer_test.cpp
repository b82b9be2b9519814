#include "ops/indexer.h"

#include <cmath>
#include <limits>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kernels/indexer_scores/indexer_scores_oracle.h"
#include "kernels/indexer_topk/indexer_topk_oracle.h"
#include "ops/gradcheck.h"
#include "ops/rounding.h"
#include "ops/tensor_checks.h"

namespace baleen::ops {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(IndexerTest, VisibleEntriesOfTheSpecification) {
  const auto expect = [](int64_t position, int64_t c4, int64_t c128) {
    EXPECT_EQ(visible_entries(position, 4), c4) << position;
    EXPECT_EQ(visible_entries(position, 128), c128) << position;
  };
  const std::vector<int64_t> first_positions{0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3};
  for (std::size_t q = 0; q < first_positions.size(); ++q) {
    EXPECT_EQ(visible_entries(static_cast<int64_t>(q), 4), first_positions[q]);
  }
  expect(126, 31, 0);
  expect(127, 32, 1);
  expect(128, 32, 1);
  expect(254, 63, 1);
  expect(255, 64, 2);
  expect(2047, 512, 16);
  expect(2051, 513, 16);
  EXPECT_EQ(visible_entries(5, 0), 0);
}

TEST(IndexerTest, ScoresAgainstOracle) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const bool rounded : {false, true}) {
      Numerics numerics = Numerics::plain();
      numerics.index_score = rounded ? IndexScore::kBf16 : IndexScore::kCompute;
      const at::Tensor q = round_bf16(seeded({2, 3, 4, 16}, 1, dtype));
      const at::Tensor keys = round_bf16(seeded({2, 5, 16}, 2, dtype));
      const at::Tensor a = round_bf16(seeded({2, 3, 4}, 3, dtype));
      std::vector<double> expected;
      for (int64_t b = 0; b < 2; ++b) {
        for (int64_t t = 0; t < 3; ++t) {
          for (int64_t w = 0; w < 5; ++w) {
            expected.push_back(kernels::indexer_score_oracle(
                values_of(q[b][t]), values_of(keys[b][w]), values_of(a[b][t]), rounded));
          }
        }
      }
      const at::Tensor scores = indexer_scores(q, keys, a, numerics);
      // Sums of bf16 values may round to neighbours when taken in float: one step of 2^-8 in a few.
      const double bound = rounded ? (dtype == at::kDouble ? 0.0 : 0x1p-9) : error_bound(dtype, 64);
      EXPECT_LE(relative_error(scores, expected), bound);
    }
  }
}

TEST(IndexerTest, ManyQueriesAreScoredInChunks) {
  // 2^23 dots fit in a chunk on the CPU; 300 * 4 * 8000 are more.
  const at::Tensor q = seeded({1, 300, 4, 2}, 1, at::kFloat);
  const at::Tensor keys = seeded({1, 8000, 2}, 2, at::kFloat);
  const at::Tensor a = seeded({1, 300, 4}, 3, at::kFloat);
  const at::Tensor all = indexer_scores(q, keys, a, Numerics::plain());
  const at::Tensor last =
      indexer_scores(q.narrow(1, 299, 1), keys, a.narrow(1, 299, 1), Numerics::plain());
  EXPECT_LE(relative_error(all.narrow(1, 299, 1), values_of(last)), error_bound(at::kFloat, 4));
  EXPECT_EQ(indexer_scores(q, keys.narrow(1, 0, 0), a, Numerics::plain()).sizes(),
            (at::IntArrayRef{1, 300, 0}));
}

TEST(IndexerTest, HeadWeightConstant) {
  const at::Tensor a = indexer_head_weights(at::ones({64}, at::kDouble), 128, Numerics::plain());
  EXPECT_NEAR(values_of(a)[0], 0.0110485435, 1e-10);
}

void expect_choice(const at::Tensor& scores, int64_t first, int64_t ratio, int64_t k) {
  const int64_t entries = scores.size(2);
  const at::Tensor picks = indexer_topk(scores, first, ratio, k);
  const at::Tensor mask = indexer_pick_mask(scores, first, ratio, k);
  ASSERT_EQ(picks.sizes(), (at::IntArrayRef{scores.size(0), scores.size(1), std::min(k, entries)}));
  for (int64_t b = 0; b < scores.size(0); ++b) {
    for (int64_t t = 0; t < scores.size(1); ++t) {
      const std::vector<double> row = values_of(scores[b][t]);
      const auto length = std::min<int64_t>(entries, visible_entries(first + t, ratio));
      auto best =
          kernels::topk_oracle(row, static_cast<std::size_t>(length), static_cast<std::size_t>(k));
      std::sort(best.begin(), best.end());
      std::vector<double> chosen(static_cast<std::size_t>(entries), 0.0);
      for (const int64_t w : best) {
        chosen[static_cast<std::size_t>(w)] = 1.0;
      }
      best.resize(static_cast<std::size_t>(picks.size(2)), -1);
      EXPECT_EQ(values_of(picks[b][t]), std::vector<double>(best.begin(), best.end()))
          << "first " << first << " t " << t << " k " << k;
      EXPECT_EQ(values_of(mask[b][t]), chosen);
    }
  }
  EXPECT_TRUE(at::equal(picks_to_mask(picks, entries), mask));
}

TEST(IndexerTest, ChoiceIsTheOraclesAtEveryBorder) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    // Few distinct values give many ties.
    const at::Tensor scores = (seeded({2, 9, 6}, 5, dtype) * 2.0).round();
    for (const int64_t first : {0, 3, 11, 100}) {
      for (const int64_t k : {0, 1, 2, 5, 6, 9}) {
        expect_choice(scores, first, 4, k);
      }
    }
    expect_choice(at::zeros({1, 1, 6}, dtype), 40, 4, 3);
    expect_choice(at::zeros({1, 2, 0}, dtype), 0, 4, 3);
  }
}

TEST(IndexerTest, NanRanksBelowMinusInfinityAndZerosTie) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor scores =
        at::tensor({NAN, -kInfinity, -0.0, 0.0, kInfinity, -NAN, -1.0, -2.0}, at::kDouble)
            .view({1, 1, 8})
            .to(dtype);
    for (int64_t k = 1; k <= 8; ++k) {
      expect_choice(scores, 100, 4, k);
    }
    EXPECT_EQ(values_of(indexer_topk(scores, 100, 4, 2)), (std::vector<double>{2, 4}));
    EXPECT_EQ(values_of(indexer_topk(scores, 100, 4, 7)),
              (std::vector<double>{0, 1, 2, 3, 4, 6, 7}));
  }
}

TEST(IndexerTest, GradientMatchesDifferences) {
  const auto report = gradcheck(
      [](const auto& in) {
        return std::vector<at::Tensor>{indexer_scores(
            in[0], in[1], indexer_head_weights(in[2], 4, Numerics::plain()), Numerics::plain())};
      },
      {seeded({1, 2, 3, 4}, 1), seeded({1, 3, 4}, 2), seeded({1, 2, 3}, 3)});
  EXPECT_LT(report.worst, 1e-7) << report.where;
}

}  // namespace
}  // namespace baleen::ops
