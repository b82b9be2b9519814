#include "ops/compressor.h"

#include <cmath>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kernels/compressor_pool/compressor_pool_oracle.h"
#include "ops/gradcheck.h"
#include "ops/tensor_checks.h"

namespace baleen::ops {
namespace {

/// u_p = (10 + p, p): carry and own value of token p, one channel each.
at::Tensor published_values(int64_t tokens) {
  const at::Tensor p = at::arange(tokens, at::kDouble);
  return at::stack({p + 10.0, p}, 1).unsqueeze(0);
}

TEST(CompressorTest, PublishedOverlapExamples) {
  const at::Tensor u = published_values(12);
  at::Tensor z = at::zeros({1, 12, 2}, at::kDouble);
  EXPECT_LE(relative_error(pool_groups(u, z, 0, 4, true, Numerics::plain()), {1.5, 8.5, 12.5}),
            1e-15);
  z[0][3][0] = std::log(3.0);
  EXPECT_LE(relative_error(pool_groups(u, z, 0, 4, true, Numerics::plain()), {1.5, 9.4, 12.5}),
            1e-15);
  at::Tensor ape = at::zeros({4, 2}, at::kDouble);
  ape[0][0] = std::log(2.0);
  ape[3][1] = std::log(5.0);
  const at::Tensor biased = add_position_bias(at::zeros({1, 12, 2}, at::kDouble), ape, 0);
  EXPECT_LE(relative_error(pool_groups(u, biased, 0, 4, true, Numerics::plain()),
                           {2.25, 106.0 / 13.0, 158.0 / 13.0}),
            1e-15);
}

/// Two lanes with values, scores and position bias; lane A counts for the group after its own.
TEST(CompressorTest, TwoLanesPoolEightTokens) {
  const at::Tensor value_a =
      at::tensor({0.5, -1.0, 2.0, 0.25, 1.0, 3.0, -2.0, 0.0, 4.0, -0.5, 1.5, 2.5}, at::kDouble);
  const at::Tensor value_b =
      at::tensor({1.0, 0.0, -1.0, 2.0, 0.5, -0.5, 1.25, 3.0, -1.0, 2.0, 0.75, -3.0}, at::kDouble);
  const at::Tensor score_a =
      at::tensor({0.1, 0.2, -0.3, 0.0, 0.4, -0.2, 0.6, 0.1, 0.0, 0.3, -0.1, 0.2}, at::kDouble);
  const at::Tensor score_b =
      at::tensor({0.3, -0.1, 0.0, 0.2, 0.1, 0.5, -0.4, 0.0, 0.2, 0.0, 0.1, -0.2}, at::kDouble);
  const at::Tensor ape =
      at::tensor({0.05, 0.0, -0.05, 0.1, 0.1, -0.1, 0.0, 0.05}, at::kDouble).view({4, 2});
  const at::Tensor u = at::stack({value_a, value_b}, 1).unsqueeze(0);
  const at::Tensor gate = at::stack({score_a, score_b}, 1).unsqueeze(0);
  const std::vector<double> expected{0.663859223, 0.556866483, -0.100066703};
  const std::vector<double> whole =
      values_of(pool_groups(u, add_position_bias(gate, ape, 0), 0, 4, true, Numerics::plain()));
  ASSERT_EQ(whole.size(), 3U);
  for (std::size_t g = 0; g < 3; ++g) {
    EXPECT_NEAR(whole[g], expected[g], 1e-6);
  }
  // Token by token: a group is pooled from its rows and the rows of the group before.
  for (int64_t g = 1; g < 3; ++g) {
    const int64_t first = 4 * (g - 1);
    const at::Tensor z = add_position_bias(gate.narrow(1, first, 8), ape, first);
    const std::vector<double> one =
        values_of(pool_groups(u.narrow(1, first, 8), z, first, 4, true, Numerics::plain()));
    ASSERT_EQ(one.size(), first == 0 ? 2U : 1U);  // rows from the start also form entry 0
    EXPECT_EQ(one.back(), whole[static_cast<std::size_t>(g)]);
  }
}

TEST(CompressorTest, RangesAroundGroupBorders) {
  const auto expect =
      [](int64_t first, int64_t rows, int64_t ratio, bool overlap, int64_t entry, int64_t count) {
        const PooledRange range = pooled_range(first, rows, ratio, overlap);
        EXPECT_EQ(range.num_entries, count) << first << " " << rows;
        if (count > 0) {
          EXPECT_EQ(range.first_entry, entry) << first << " " << rows;
        }
      };
  expect(0, 0, 4, true, 0, 0);
  expect(0, 3, 4, true, 0, 0);
  expect(0, 4, 4, true, 0, 1);
  expect(0, 9, 4, true, 0, 2);
  expect(4, 4, 4, true, 2, 0);  // the carry group alone
  expect(4, 8, 4, true, 2, 1);
  expect(3, 9, 4, true, 2, 1);
  expect(5, 20, 4, true, 3, 3);
  expect(128, 127, 128, false, 1, 0);
  expect(128, 128, 128, false, 1, 1);
  expect(127, 129, 128, false, 1, 1);
  expect(0, 257, 128, false, 0, 2);
}

TEST(CompressorTest, AnyWindowOfRowsGivesTheOracleEntries) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const bool overlap : {true, false}) {
      for (const int64_t ratio : {1, 4, 16}) {
        const int64_t d = 3;
        const int64_t channels = overlap ? 2 * d : d;
        const int64_t tokens = 6 * ratio + 1;
        const at::Tensor u = seeded({2, tokens, channels}, 1, dtype);
        const at::Tensor ape = seeded({ratio, channels}, 3, dtype);
        const at::Tensor gate = seeded({2, tokens, channels}, 2, dtype) * 5.0;
        const at::Tensor z = add_position_bias(gate, ape, 0);
        for (const int64_t first :
             {int64_t{0}, int64_t{1}, ratio - 1, ratio, ratio + 1, 2 * ratio}) {
          for (const int64_t rows :
               {int64_t{0}, ratio - 1, ratio, 2 * ratio, 3 * ratio + 1, 4 * ratio}) {
            const at::Tensor part_u = u.narrow(1, first, rows);
            const at::Tensor part_z = add_position_bias(gate.narrow(1, first, rows), ape, first);
            EXPECT_TRUE(at::equal(part_z, z.narrow(1, first, rows)));
            const PooledRange range = pooled_range(first, rows, ratio, overlap);
            const at::Tensor entries =
                pool_groups(part_u, part_z, first, ratio, overlap, Numerics::plain());
            ASSERT_EQ(entries.sizes(), (at::IntArrayRef{2, range.num_entries, d}));
            std::vector<double> expected;
            for (int64_t b = 0; b < 2; ++b) {
              const std::vector<double> values = values_of(u[b]);
              const std::vector<double> scores = values_of(z[b]);
              for (int64_t w = range.first_entry; w < range.first_entry + range.num_entries; ++w) {
                const auto entry = kernels::compressor_entry_oracle(values,
                                                                    scores,
                                                                    static_cast<std::size_t>(d),
                                                                    static_cast<std::size_t>(ratio),
                                                                    overlap,
                                                                    static_cast<std::size_t>(w));
                expected.insert(expected.end(), entry.begin(), entry.end());
              }
            }
            EXPECT_LE(relative_error(entries, expected), error_bound(dtype, 2 * ratio));
          }
        }
      }
    }
  }
}

TEST(CompressorTest, GradientMatchesDifferences) {
  for (const bool overlap : {true, false}) {
    for (const int64_t first : {0, 2}) {
      const auto report = gradcheck(
          [&](const auto& in) {
            const at::Tensor z = add_position_bias(in[1], in[2], first);
            return std::vector<at::Tensor>{
                pool_groups(in[0], z, first, 3, overlap, Numerics::plain())};
          },
          {seeded({1, 11, 4}, 1), seeded({1, 11, 4}, 2), seeded({3, 4}, 3)});
      EXPECT_LT(report.worst, 1e-7) << report.where;
    }
  }
}

}  // namespace
}  // namespace baleen::ops
