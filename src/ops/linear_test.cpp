#include "ops/linear.h"

#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kernels/grouped_projection/grouped_projection_oracle.h"
#include "kernels/linear/linear_oracle.h"
#include "kernels/rms_norm/rms_norm_oracle.h"
#include "ops/embedding.h"
#include "ops/fake_quantize.h"
#include "ops/gradcheck.h"
#include "ops/grouped_projection.h"
#include "ops/rms_norm.h"
#include "ops/rounding.h"
#include "ops/tensor_checks.h"
#include "ops/token_loss.h"

namespace baleen::ops {
namespace {

std::vector<double> oracle_rows(const at::Tensor& x,
                                const at::Tensor& w,
                                kernels::LinearRounding r) {
  const std::vector<double> values = values_of(x);
  const std::vector<double> weight = values_of(w);
  std::vector<double> all;
  for (int64_t row = 0; row < x.numel() / x.size(-1); ++row) {
    const auto y = kernels::linear_oracle(part(values, row * x.size(-1), x.size(-1)), weight, r);
    all.insert(all.end(), y.begin(), y.end());
  }
  return all;
}

TEST(LinearTest, PlainAgainstOracle) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const int64_t in : {1, 7, 128, 200}) {
      const at::Tensor x = seeded({2, 3, in}, 1, dtype);
      const at::Tensor w = seeded({5, in}, 2, dtype);
      EXPECT_LE(relative_error(linear(x, w, LinearFormat::kFp8, Numerics::plain()),
                               oracle_rows(x, w, {})),
                error_bound(dtype, in));
      EXPECT_LE(relative_error(linear_unrounded(x, w, Numerics::plain()), oracle_rows(x, w, {})),
                error_bound(dtype, in));
    }
  }
}

TEST(LinearTest, QuantisedInputAgainstOracle) {
  for (const auto format : {LinearFormat::kFp8, LinearFormat::kFp4, LinearFormat::kPlain}) {
    const at::Tensor x = round_bf16(seeded({4, 288}, 1));
    const at::Tensor w = fake_quantize_weight(seeded({6, 288}, 2), format);
    const kernels::LinearRounding rounding{.quantised = format != LinearFormat::kPlain,
                                           .rounded = true};
    // In double both sides round the same sums, so that the stored bf16 values are equal.
    EXPECT_EQ(values_of(linear(x, w, format, Numerics::reference())), oracle_rows(x, w, rounding));
    // In float a sum may fall on the other side of a bf16 border: one step of 2^-8 in few elements.
    EXPECT_LE(
        relative_error(linear(x.to(at::kFloat), w.to(at::kFloat), format, Numerics::reference()),
                       oracle_rows(x, w, rounding)),
        0x1p-9);
  }
}

TEST(LinearTest, GroupedProjectionAgainstOracle) {
  for (const bool fp8 : {false, true}) {
    const at::Tensor x = round_bf16(seeded({2, 3, 4, 80}, 1));  // 4 heads of 80, 2 groups of 160
    const at::Tensor w = seeded({2 * 5, 160}, 2);
    Numerics numerics = Numerics::reference();
    numerics.wo_a_activation = fp8 ? LinearActivation::kFp8 : LinearActivation::kNone;
    const at::Tensor y = grouped_projection(x, w, 2, numerics);
    ASSERT_EQ(y.sizes(), (at::IntArrayRef{2, 3, 10}));
    const std::vector<double> values = values_of(x);
    std::vector<double> expected;
    for (int64_t row = 0; row < 6; ++row) {
      const auto v = kernels::grouped_projection_oracle(
          part(values, row * 320, 320), values_of(w), 2, {.quantised = fp8, .rounded = true});
      expected.insert(expected.end(), v.begin(), v.end());
    }
    EXPECT_EQ(values_of(y), expected);
    EXPECT_EQ(values_of(grouped_projection(x.flatten(2), w, 2, numerics)), expected);
  }
}

TEST(RmsNormTest, AgainstOracle) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const int64_t width : {1, 9, 128}) {
      const at::Tensor x = seeded({2, 3, width}, 1, dtype) * 3.0;
      const at::Tensor g = seeded({width}, 2, dtype);
      const std::vector<double> values = values_of(x);
      std::vector<double> weighted;
      std::vector<double> plain;
      for (int64_t row = 0; row < 6; ++row) {
        const auto a =
            kernels::rms_norm_oracle(part(values, row * width, width), values_of(g), 1e-6);
        const auto b = kernels::rms_norm_oracle(part(values, row * width, width), {}, 1e-6);
        weighted.insert(weighted.end(), a.begin(), a.end());
        plain.insert(plain.end(), b.begin(), b.end());
      }
      const double bound = error_bound(dtype, width);
      EXPECT_LE(relative_error(rms_norm(x, g, 1e-6, Numerics::plain()), weighted), bound);
      EXPECT_LE(relative_error(rms_norm(x, {}, 1e-6, Numerics::plain()), plain), bound);
      EXPECT_LE(relative_error(query_head_norm(x, 1e-6, Numerics::plain()), plain), bound);
      for (double& value : weighted) {
        value = numerics::round_to_bf16(value);
      }
      EXPECT_LE(relative_error(rms_norm(x, g, 1e-6, Numerics::reference()), weighted), 0x1p-9);
    }
  }
}

TEST(RmsNormTest, StepwiseBf16QueryNorm) {
  Numerics numerics = Numerics::reference();
  numerics.query_norm = QueryNorm::kBf16;
  // 1^2 and 2^2 are exact, their mean 2.5 too; rsqrt(2.5) = 0.632455 rounds to 0.6328125.
  const at::Tensor x = at::tensor({1.0, 2.0}, at::kDouble).view({1, 1, 2});
  EXPECT_EQ(values_of(query_head_norm(x, 1e-6, numerics)),
            (std::vector<double>{0.6328125, 1.265625}));
}

TEST(RmsNormTest, GradientMatchesDifferences) {
  const auto report = gradcheck(
      [](const auto& in) {
        return std::vector<at::Tensor>{rms_norm(in[0], in[1], 1e-6, Numerics::plain()),
                                       query_head_norm(in[0], 1e-6, Numerics::plain())};
      },
      {seeded({2, 5}, 1), seeded({5}, 2)});
  EXPECT_LT(report.worst, 1e-7) << report.where;
}

TEST(LinearTest, GradientMatchesDifferences) {
  const auto report = gradcheck(
      [](const auto& in) {
        return std::vector<at::Tensor>{linear(in[0], in[1], LinearFormat::kFp8, Numerics::plain()),
                                       grouped_projection(in[0], in[2], 2, Numerics::plain())};
      },
      {seeded({2, 6}, 1), seeded({3, 6}, 2), seeded({4, 3}, 3)});
  EXPECT_LT(report.worst, 1e-7) << report.where;
}

TEST(EmbeddingTest, StreamsAreCopiesOfTheRow) {
  const at::Tensor table = seeded({5, 3}, 1);
  const at::Tensor ids = at::tensor({4, 0, 4}, at::kLong).unsqueeze(0);
  const at::Tensor streams = embed_streams(table, ids, 4);
  ASSERT_EQ(streams.sizes(), (at::IntArrayRef{1, 3, 4, 3}));
  for (int64_t j = 0; j < 4; ++j) {
    EXPECT_TRUE(at::equal(streams.select(2, j).squeeze(0), table.index_select(0, ids.view({-1}))));
  }
}

TEST(TokenLossTest, KnownAnswerAndIgnoredTarget) {
  const at::Tensor logits = at::tensor({0.0, 1.0, 2.0, 5.0, 5.0, 5.0}, at::kDouble).view({2, 3});
  const at::Tensor loss = cross_entropy(logits, at::tensor({2, 1}, at::kLong));
  EXPECT_NEAR(values_of(loss)[0], 0.40760596444438, 1e-13);  // ln(1 + e^-1 + e^-2)
  EXPECT_NEAR(values_of(loss)[1], std::log(3.0), 1e-13);
  EXPECT_EQ(values_of(cross_entropy(logits, at::tensor({-1, 1}, at::kLong)))[0], 0.0);
  const auto report = gradcheck(
      [](const auto& in) {
        return std::vector<at::Tensor>{cross_entropy(in[0], at::tensor({2, -1}, at::kLong))};
      },
      {logits});
  EXPECT_LT(report.worst, 1e-7) << report.where;
}

}  // namespace
}  // namespace baleen::ops
