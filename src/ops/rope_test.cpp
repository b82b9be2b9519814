#include "ops/rope.h"

#include <cmath>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kernels/hadamard/hadamard_oracle.h"
#include "kernels/rope/rope_oracle.h"
#include "numerics/block_scale.h"
#include "ops/gradcheck.h"
#include "ops/hadamard.h"
#include "ops/tensor_checks.h"

namespace baleen::ops {
namespace {

const at::Tensor kDoubleLike = at::empty({0}, at::kDouble);

TEST(RopeTest, PublishedFrequencies) {
  const std::vector<double> plain = rope_frequencies(64, 10000.0, {});
  const std::vector<double> yarn = rope_frequencies(64, 160000.0, YarnConfig{});
  ASSERT_EQ(plain.size(), 32U);
  const auto expect = [](double found, double published) {
    // The list was computed in float32: each of four roundings adds at most 2^-24.
    EXPECT_NEAR(found / published, 1.0, 4 * 0x1p-24);
  };
  expect(plain[1], 0.7498942);
  expect(plain[31], 0.00013335215);
  expect(yarn[0], 1.0);
  expect(yarn[15], 0.0036355385);
  expect(yarn[16], 0.002265625);
  expect(yarn[17], 0.0013968013);
  expect(yarn[20], 0.00029697779);
  expect(yarn[24], 1.9531253e-05);
  expect(yarn[25], 5.3723124e-06);
  expect(yarn[31], 5.6805294e-07);
}

TEST(RopeTest, PublishedPairs) {
  const RopeTable table = make_rope_table(
      rope_frequencies(64, 160000.0, YarnConfig{}), 300, kDoubleLike, Numerics::plain());
  const at::Tensor x = at::zeros({1, 1, 128}, at::kDouble);
  x.select(2, 64).fill_(1.0);          // pair 0
  x.select(2, 64 + 2 * 8).fill_(1.0);  // pair 8, frequency 0.05
  const at::Tensor once = rotate(x, table.rows(1, 1), false, Numerics::plain());
  EXPECT_NEAR(values_of(once)[64], 0.5403023, 1e-7);
  EXPECT_NEAR(values_of(once)[65], 0.8414710, 1e-7);
  EXPECT_LE(relative_error(rotate(once, table.rows(1, 1), true, Numerics::plain()), values_of(x)),
            1e-15);
  const at::Tensor c4 = rotate(x, table.rows(2 * 4, 1, 4), false, Numerics::plain());
  EXPECT_NEAR(values_of(c4)[80], std::cos(0.4), 1e-12);
  const at::Tensor c128 = rotate(x, table.rows(2 * 128, 1, 128), false, Numerics::plain());
  EXPECT_NEAR(values_of(c128)[81], std::sin(12.8), 1e-12);
}

TEST(RopeTest, AgainstOracleForHeadsRowsAndStrides) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const std::vector<double> frequencies = rope_frequencies(8, 10000.0, {});
    const RopeTable table =
        make_rope_table(frequencies, 40, at::empty({0}, dtype), Numerics::plain());
    for (const bool inverse : {false, true}) {
      for (const int64_t step : {1, 4}) {
        const at::Tensor x = seeded({2, 5, 3, 12}, 4, dtype);
        std::vector<double> expected = values_of(x);
        for (int64_t row = 0; row < 2 * 5 * 3; ++row) {
          kernels::rope_oracle(std::span(expected).subspan(static_cast<std::size_t>(row * 12), 12),
                               frequencies,
                               3 + step * (row / 3 % 5),
                               inverse);
        }
        const at::Tensor rows = table.rows(3, 5, step);
        // In float the angle, up to 19, has half a unit of 2^-20.
        const double bound = dtype == at::kDouble ? 1e-15 : 19 * 0x1p-24 + error_bound(dtype, 2);
        EXPECT_LE(relative_error(rotate(x, rows, inverse, Numerics::plain()), expected), bound);
        const at::Tensor positions = at::arange(5) * step + 3;
        EXPECT_TRUE(at::equal(table.rows_at(positions), rows));
        EXPECT_LE(relative_error(rotate(x.select(2, 0), rows, inverse, Numerics::plain()),
                                 values_of(at::tensor(expected).view({2, 5, 3, 12}).select(2, 0))),
                  bound);
      }
    }
  }
}

TEST(RopeTest, TableTypes) {
  Numerics numerics = Numerics::reference();
  const std::vector<double> frequencies{1.0, 0.1};
  const float angle = 7.0F * 0.1F;
  const auto exact = static_cast<float>(std::cos(static_cast<double>(angle)));
  const at::Tensor f32 = make_rope_table(frequencies, 8, kDoubleLike, numerics).cis;
  EXPECT_EQ(at::real(f32)[7][1].item<double>(), static_cast<double>(exact));
  numerics.rope_table = RopeTableType::kBf16;
  const at::Tensor bf16 = make_rope_table(frequencies, 8, kDoubleLike, numerics).cis;
  EXPECT_EQ(at::real(bf16)[7][1].item<double>(),
            static_cast<double>(numerics::round_to_bf16(exact)));
}

TEST(RopeTest, PositionZeroAndNoRows) {
  const RopeTable table = make_rope_table({1.0, 0.5}, 4, kDoubleLike, Numerics::plain());
  const at::Tensor x = seeded({1, 1, 2, 4}, 1);
  EXPECT_TRUE(at::equal(rotate(x, table.rows(0, 1), false, Numerics::plain()), x));
  EXPECT_EQ(rotate(x.narrow(1, 0, 0), table.rows(4, 0), false, Numerics::plain()).numel(), 0);
  EXPECT_DEATH(table.rows(3, 2), "of 4 positions");
}

TEST(RopeTest, GradientMatchesDifferences) {
  const RopeTable table = make_rope_table({1.0, 0.5}, 9, kDoubleLike, Numerics::plain());
  const auto report = gradcheck(
      [&](const auto& in) {
        return std::vector<at::Tensor>{rotate(in[0], table.rows(5, 2), false, Numerics::plain()),
                                       rotate(in[0], table.rows(0, 2, 8), true, Numerics::plain())};
      },
      {seeded({1, 2, 2, 6}, 3)});
  EXPECT_LT(report.worst, 1e-7) << report.where;
}

TEST(HadamardTest, PublishedExamples) {
  const Numerics plain = Numerics::plain();
  const at::Tensor units = at::eye(128, at::kDouble);
  const std::vector<double> first = values_of(hadamard(units[1], plain) * std::sqrt(128.0));
  const std::vector<double> third = values_of(hadamard(units[3], plain) * std::sqrt(128.0));
  const std::vector<double> signs{1, -1, -1, 1, 1, -1, -1, 1};
  for (std::size_t i = 0; i < signs.size(); ++i) {
    EXPECT_NEAR(first[i], i % 2 == 0 ? 1.0 : -1.0, 1e-14);
    EXPECT_NEAR(third[i], signs[i], 1e-14);
  }
  const std::vector<double> ramp = values_of(hadamard(at::arange(128, at::kDouble), plain));
  EXPECT_NEAR(ramp[0], 718.42049, 1e-5);
  EXPECT_NEAR(ramp[1], -5.6568543, 1e-7);
  EXPECT_NEAR(ramp[2], -11.313709, 1e-6);
  EXPECT_NEAR(ramp[3], 0.0, 1e-12);
  EXPECT_NEAR(ramp[4], -22.627417, 1e-6);
  EXPECT_NEAR(ramp[64], -362.03867, 1e-5);
}

TEST(HadamardTest, AgainstOracleAndItsOwnInverse) {
  for (const int64_t width : {1, 2, 16, 32, 128, 256}) {
    for (const auto dtype : {at::kFloat, at::kDouble}) {
      const at::Tensor x = seeded({3, width}, 8, dtype);
      const std::vector<double> values = values_of(x);
      std::vector<double> expected;
      for (int64_t row = 0; row < 3; ++row) {
        const auto y = kernels::hadamard_oracle(part(values, row * width, width));
        expected.insert(expected.end(), y.begin(), y.end());
      }
      const at::Tensor y = hadamard(x, Numerics::plain());
      EXPECT_LE(relative_error(y, expected), error_bound(dtype, width));
      EXPECT_LE(relative_error(hadamard(y, Numerics::plain()), values),
                error_bound(dtype, 2 * width));
    }
  }
  EXPECT_DEATH(hadamard(at::zeros({3}), Numerics::plain()), "power of two");
}

TEST(HadamardTest, IndexTransformFollowsTheSwitches) {
  const at::Tensor x = seeded({4, 128}, 2);
  Numerics numerics = Numerics::reference();
  std::vector<double> expected = values_of(hadamard(x, numerics));
  for (std::size_t row = 0; row < 4; ++row) {
    numerics::simulate_s4(std::span(expected).subspan(row * 128, 128), 32);
  }
  EXPECT_EQ(values_of(index_transform(x, numerics)), expected);
  numerics.indexer_quant = IndexerQuant::kNone;
  numerics.indexer_hadamard = false;
  EXPECT_EQ(values_of(index_transform(x, numerics)), values_of(x));
  numerics.indexer_quant = IndexerQuant::kFp8;
  expected = values_of(x);
  for (std::size_t row = 0; row < 4; ++row) {
    numerics::simulate_s8(std::span(expected).subspan(row * 128, 128), 128);
  }
  EXPECT_EQ(values_of(index_transform(x, numerics)), expected);
}

TEST(HadamardTest, GradientMatchesDifferences) {
  const auto report = gradcheck(
      [](const auto& in) { return std::vector<at::Tensor>{hadamard(in[0], Numerics::plain())}; },
      {seeded({2, 8}, 3)});
  EXPECT_LT(report.worst, 1e-7) << report.where;
}

}  // namespace
}  // namespace baleen::ops
