#include "ops/attention.h"

#include <cmath>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kernels/sparse_attention/sparse_attention_oracle.h"
#include "ops/gradcheck.h"
#include "ops/indexer.h"
#include "ops/rounding.h"
#include "ops/tensor_checks.h"

namespace baleen::ops {
namespace {

/// The rows of the whole sequence, the queries of [first, first + tokens), and what the oracle
/// says.
struct Scene {
  at::Tensor q, raw, entries, picks, sink;
  int64_t first, window, ratio;
  int64_t withheld = 0;    // oldest raw rows that the operator does not get
  int64_t hidden_at = -1;  // position that no query sees

  AttentionRows rows() const {
    const int64_t before = raw.size(1) - q.size(1);
    return {.raw = raw.narrow(1, withheld, raw.size(1) - withheld),
            .entries = entries,
            .picks = picks,
            .ratio = ratio,
            .window = window,
            .withheld = withheld,
            .hidden_row = hidden_at < 0 ? -1 : hidden_at - first + before - withheld};
  }
  std::vector<double> expected(bool rounded) const {
    std::vector<double> all;
    const int64_t before = raw.size(1) - q.size(1);
    for (int64_t b = 0; b < q.size(0); ++b) {
      std::vector<std::vector<double>> raw_rows, entry_rows;
      for (int64_t i = 0; i < raw.size(1); ++i) {
        raw_rows.push_back(values_of(raw[b][i]));
      }
      for (int64_t w = 0; entries.defined() && w < entries.size(1); ++w) {
        entry_rows.push_back(values_of(entries[b][w]));
      }
      for (int64_t t = 0; t < q.size(1); ++t) {
        const int64_t position = first + t;
        std::vector<std::span<const double>> visible;
        for (int64_t p = std::max<int64_t>(0, position - window + 1); p <= position; ++p) {
          if (p - first + before >= withheld && p != hidden_at) {
            visible.push_back(raw_rows[static_cast<std::size_t>(p - first + before)]);
          }
        }
        for (std::size_t w = 0; w < entry_rows.size(); ++w) {
          const auto entry = static_cast<int64_t>(w);
          if (entry < visible_entries(position, ratio) &&
              (!picks.defined() || picks[b][t][entry].item<bool>())) {
            visible.push_back(entry_rows[w]);
          }
        }
        for (int64_t h = 0; h < q.size(2); ++h) {
          const auto o =
              kernels::sparse_attention_oracle(values_of(q[b][t][h]),
                                               visible,
                                               values_of(sink)[static_cast<std::size_t>(h)],
                                               rounded);
          all.insert(all.end(), o.begin(), o.end());
        }
      }
    }
    return all;
  }
};

Scene scene(int64_t first,
            int64_t tokens,
            int64_t window,
            int64_t ratio,
            bool picked,
            at::ScalarType dtype) {
  const int64_t width = 8;
  const int64_t heads = 3;
  const int64_t before = std::min(first, window - 1);
  const int64_t entries =
      ratio == 0 ? 0 : (first + tokens) / ratio + 1;  // one more than can be seen
  Scene s{round_bf16(seeded({2, tokens, heads, width}, 1, dtype) * 3.0),
          round_bf16(seeded({2, before + tokens, width}, 2, dtype)),
          {},
          {},
          seeded({heads}, 4, dtype),
          first,
          window,
          ratio};
  if (ratio > 0) {
    s.entries = round_bf16(seeded({2, entries, width}, 3, dtype));
    if (picked) {
      s.picks = seeded({2, tokens, entries}, 5, dtype).gt(0.0);
    }
  }
  return s;
}

TEST(AttentionTest, PublishedSink) {
  // One dim, logits 1 and 2: q = 1, rows 10 and 20 would give logits 10 and 20, so q is 0.1.
  const at::Tensor q = at::full({1, 1, 1, 1}, 0.1, at::kDouble);
  const at::Tensor raw = at::tensor({10.0, 20.0}, at::kDouble).view({1, 2, 1});
  const at::Tensor o =
      sparse_attention(q,
                       {.raw = raw, .entries = {}, .picks = {}, .ratio = 0, .window = 2},
                       at::tensor({0.5}, at::kDouble),
                       1,
                       Numerics::plain());
  EXPECT_NEAR(values_of(o)[0], 14.882873, 5e-7);
}

TEST(AttentionTest, WithheldAndHiddenRowsAreSeenByNoQuery) {
  for (const int64_t first : {1, 4, 7, 8, 21}) {
    for (const int64_t tokens : {1, 2, 4, 5, 9}) {  // both the few-queries and the masked form
      const int64_t before = std::min<int64_t>(first, 7);
      for (int64_t withheld = 0; withheld <= before; ++withheld) {
        for (int64_t hidden = first - before + withheld; hidden <= first; ++hidden) {
          Scene s = scene(first, tokens, 8, 0, false, at::kDouble);
          s.withheld = withheld;
          s.hidden_at = hidden == first ? -1 : hidden;
          const at::Tensor o = sparse_attention(s.q, s.rows(), s.sink, s.first, Numerics::plain());
          EXPECT_LE(relative_error(o, s.expected(false)), error_bound(at::kDouble, 32))
              << "first " << first << " tokens " << tokens << " withheld " << withheld << " hidden "
              << hidden;
        }
      }
    }
  }
}

TEST(AttentionTest, AgainstOracleAroundEveryBorder) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const int64_t ratio : {0, 4, 5}) {
      for (const int64_t first : {0, 1, 3, 4, 6, 7, 8, 21}) {
        for (const int64_t tokens : {1, 2, 7, 8, 9, 20}) {
          const Scene s = scene(first, tokens, 8, ratio, ratio == 4, dtype);
          const at::Tensor o = sparse_attention(s.q, s.rows(), s.sink, s.first, Numerics::plain());
          EXPECT_LE(relative_error(o, s.expected(false)), error_bound(dtype, 32))
              << "ratio " << ratio << " first " << first << " tokens " << tokens;
        }
      }
    }
  }
}

TEST(AttentionTest, RoundedWeightsAndOutput) {
  for (const int64_t tokens : {1, 20}) {
    const Scene s = scene(7, tokens, 8, 4, true, at::kDouble);
    std::vector<double> expected = s.expected(true);
    for (double& value : expected) {
      value = numerics::round_to_bf16(value);
    }
    const at::Tensor o = sparse_attention(s.q, s.rows(), s.sink, s.first, Numerics::reference());
    // A probability or an output next to a bf16 border may go the other way: 2^-9 in few elements.
    EXPECT_LE(relative_error(o, expected), 0x1p-12);
    EXPECT_GT(relative_error(o, s.expected(false)), 1e-5);  // rounding took place
  }
}

// A double weight rounds to bf16 once. Rounded to float on the way, one just above the middle of
// two bf16 values becomes the middle, and then goes to the even, lower one. About one weight in
// 2^16 is such a case, enough to make long double runs depend on how they are cut.
TEST(AttentionTest, WeightsRoundOnceForAnyNumberOfQueries) {
  const double middle = 0.75 + 0x1p-9;
  const double distance = -std::log(middle + 0x1p-35);
  for (const int64_t tokens : {2, 4, 5, 40}) {
    at::Tensor raw = at::zeros({1, tokens, 1}, at::kDouble);
    raw.slice(1, 1, tokens, 2).fill_(-distance);  // every later query sees logits 0 and -distance
    const at::Tensor q = at::ones({1, tokens, 1, 1}, at::kDouble);
    const at::Tensor sink = at::zeros({1}, at::kDouble);
    const at::Tensor o =
        sparse_attention(q,
                         {.raw = raw, .entries = {}, .picks = {}, .ratio = 0, .window = 2},
                         sink,
                         0,
                         Numerics::reference());
    const double upper = 0.75 + 0x1p-8;
    const double expected =
        numerics::round_to_bf16(upper * -distance / (1.0 + (middle + 0x1p-35) + 1.0));
    for (int64_t t = 1; t < tokens; ++t) {
      EXPECT_EQ(o[0][t][0][0].item<double>(), expected) << "query " << t << " of " << tokens;
    }
  }
}

TEST(AttentionTest, RowsThatAreNotVisibleDoNotCount) {
  Scene s = scene(5, 6, 4, 4, false, at::kDouble);
  const at::Tensor before = sparse_attention(s.q, s.rows(), s.sink, s.first, Numerics::plain());
  s.entries = s.entries.clone();
  s.entries.narrow(1, 2, s.entries.size(1) - 2).fill_(1e3);  // visible from position 11 on
  const at::Tensor after = sparse_attention(s.q, s.rows(), s.sink, s.first, Numerics::plain());
  EXPECT_TRUE(at::equal(after, before));
}

TEST(AttentionTest, ExtremeSinks) {
  Scene s = scene(3, 2, 8, 0, false, at::kFloat);
  s.sink = at::tensor({-1e4F, 1e4F, 0.0F}, at::kFloat);
  const at::Tensor o = sparse_attention(s.q, s.rows(), s.sink, s.first, Numerics::plain());
  EXPECT_TRUE(o.isfinite().all().item<bool>());
  EXPECT_EQ(values_of(o.select(2, 1).abs().max())[0], 0.0);  // the sink takes everything
}

TEST(AttentionTest, LongSequencesAreWalkedInChunks) {
  // More tokens than one chunk holds (512 at this window); the middle is compared with a short
  // call.
  const Scene s = scene(0, 1200, 8, 16, true, at::kDouble);
  const at::Tensor o = sparse_attention(s.q, s.rows(), s.sink, 0, Numerics::plain());
  const AttentionRows rows{.raw = s.raw.narrow(1, 593, 17),
                           .entries = s.entries,
                           .picks = s.picks.narrow(1, 600, 10),
                           .ratio = 16,
                           .window = 8};
  const at::Tensor part_o =
      sparse_attention(s.q.narrow(1, 600, 10), rows, s.sink, 600, Numerics::plain());
  EXPECT_LE(relative_error(o.narrow(1, 600, 10), values_of(part_o)), error_bound(at::kDouble, 96));
  // The gradient of a long call is that of its pieces, summed.
  const auto gradient = [&](const std::vector<int64_t>& cuts) {
    const at::Tensor raw = s.raw.detach().clone().requires_grad_(true);
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      const int64_t begin = cuts[i], count = cuts[i + 1] - cuts[i];
      const int64_t before = std::min<int64_t>(begin, 7);
      const AttentionRows piece{.raw = raw.narrow(1, begin - before, before + count),
                                .entries = s.entries,
                                .picks = s.picks.narrow(1, begin, count),
                                .ratio = 16,
                                .window = 8};
      loss = loss +
             sparse_attention(s.q.narrow(1, begin, count), piece, s.sink, begin, Numerics::plain())
                 .square()
                 .sum();
    }
    loss.backward();
    return raw.grad();
  };
  EXPECT_LE(relative_error(gradient({0, 1200}), values_of(gradient({0, 1, 300, 700, 1200}))),
            1e-12);
}

TEST(AttentionTest, NoQueries) {
  const Scene s = scene(4, 1, 8, 4, false, at::kDouble);
  const AttentionRows rows{
      .raw = s.raw.narrow(1, 0, 4), .entries = s.entries, .picks = {}, .ratio = 4, .window = 8};
  EXPECT_EQ(sparse_attention(s.q.narrow(1, 0, 0), rows, s.sink, 4, Numerics::plain()).numel(), 0);
}

TEST(AttentionTest, GradientMatchesDifferences) {
  for (const int64_t ratio : {0, 2}) {
    const Scene s = scene(2, 5, 3, ratio, ratio == 2, at::kDouble);
    std::vector<at::Tensor> inputs{s.q, s.raw, s.sink};
    if (ratio > 0) {
      inputs.push_back(s.entries);
    }
    const auto report = gradcheck(
        [&](const auto& in) {
          AttentionRows rows = s.rows();
          rows.raw = in[1];
          rows.entries = ratio > 0 ? in[3] : at::Tensor();
          return std::vector<at::Tensor>{
              sparse_attention(in[0], rows, in[2], s.first, Numerics::plain())};
        },
        inputs);
    EXPECT_LT(report.worst, 1e-7) << report.where;
  }
}

/// Straight-through: with rounded weights the gradient differs from the exact one by the rounding
/// only.
TEST(AttentionTest, RoundedGradientStaysClose) {
  const Scene s = scene(2, 5, 3, 2, true, at::kDouble);
  const auto gradient = [&](const Numerics& numerics) {
    const at::Tensor raw = s.raw.detach().clone().requires_grad_(true);
    AttentionRows rows = s.rows();
    rows.raw = raw;
    (sparse_attention(s.q, rows, s.sink, s.first, numerics) * seeded({2, 5, 3, 8}, 8))
        .sum()
        .backward();
    return raw.grad();
  };
  const double distance =
      relative_error(gradient(Numerics::reference()), values_of(gradient(Numerics::plain())));
  EXPECT_GT(distance, 0.0);
  EXPECT_LE(distance, 0x1p-7);
}

}  // namespace
}  // namespace baleen::ops
