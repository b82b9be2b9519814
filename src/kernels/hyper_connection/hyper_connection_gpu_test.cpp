#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "device/stream.h"
#include "kernels/hyper_connection/hyper_connection.h"
#include "kernels/hyper_connection/hyper_connection_oracle.h"
#include "kernels/hyper_connection/hyper_connection_scene.h"
#include "kernels/testing/gpu_test.h"
#include "numerics/bfloat16.h"
#include "numerics/block_scale.h"

namespace baleen::kernels {
namespace {

using testing::HcForm;
using testing::HcOutputs;
using testing::HcScene;
using testing::HcSceneShape;
using HyperConnectionGpu = testing::GpuTest;
using HyperConnectionGpuSmall = testing::GpuTest;

std::vector<double> bf16_row(const std::vector<uint16_t>& values, int64_t row, int64_t width) {
  std::vector<double> out(static_cast<std::size_t>(width));
  for (int64_t i = 0; i < width; ++i) {
    out[static_cast<std::size_t>(i)] = static_cast<double>(
        numerics::bf16_to_float(values[static_cast<std::size_t>(row * width + i)]));
  }
  return out;
}

std::vector<double> float_row(const std::vector<float>& values, int64_t row, int64_t width) {
  const auto begin = values.begin() + row * width;
  return {begin, begin + width};
}

/// Within one bf16 step everywhere, and all but one in a thousand equal. FP32 sums are within 1e-6
/// of the exact ones and a bf16 step is 2^-8, so a sum lands on the wrong side of a tie about once
/// in 5,000 elements.
void expect_rounded(const std::vector<double>& found,
                    const std::vector<double>& expected,
                    const char* what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  std::size_t different = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i] == expected[i]) {
      continue;
    }
    ++different;
    const double step = std::ldexp(1.0, std::ilogb(expected[i]) - 7);
    // 1e-6: sums of terms near one that cancel.
    ASSERT_LE(std::abs(found[i] - expected[i]), 1.0001 * step + 1e-6)
        << what << " element " << i << " found " << found[i] << " expected " << expected[i];
  }
  EXPECT_LE(different, found.size() / 1000 + 1) << what;
}

void expect_near(const std::vector<double>& found,
                 const std::vector<double>& expected,
                 double tolerance,
                 const char* what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], tolerance) << what << " element " << i;
  }
}

/// Every stage of token `t` against the oracle, each from what the stage before really gave.
void expect_token(const HcScene& scene, const HcOutputs& out, int64_t t) {
  const int64_t h = scene.shape.width;
  const bool head = scene.shape.form == HcForm::kHead;
  std::vector<std::vector<double>> parts;
  for (const auto& part : scene.parts) {
    parts.push_back(bf16_row(part, t, h));
  }
  const std::vector<double> residual =
      scene.residual.empty() ? std::vector<double>() : bf16_row(scene.residual, t, 4 * h);
  const bool mixed = !scene.post.empty();
  const std::vector<double> x = bf16_row(out.streams, t, 4 * h);
  expect_rounded(
      x,
      hc_fused_streams_oracle(parts,
                              residual,
                              mixed ? float_row(scene.post, t, 4) : std::vector<double>(),
                              mixed ? float_row(scene.comb, t, 16) : std::vector<double>()),
      "streams");
  const std::vector<double> fn(scene.fn.begin(), scene.fn.end());
  const std::vector<double> base(scene.base.begin(), scene.base.end());
  const std::vector<double> scale(scene.scale.begin(), scene.scale.end());
  std::vector<double> u;
  const auto eps = static_cast<double>(1e-6F);
  if (head) {
    u = hc_collapse_oracle(x, 4, hc_mix_oracle(x, fn, eps), base, scale[0], eps);
  } else {
    const HcOracle mix = hc_pre_oracle(x, 4, fn, base, scale, eps, eps, 20);
    u = mix.y;
    // A dot of 4H products is within 1e-6 of the exact one; sigmoid and Sinkhorn do not enlarge it.
    expect_near(float_row(out.post, t, 4), mix.post, 2e-6, "post");
    expect_near(float_row(out.comb, t, 16), mix.comb, 1e-6, "comb");
  }
  for (double& value : u) {
    value = numerics::round_to_bf16(value);
  }
  const std::vector<double> found_u = bf16_row(out.collapsed, t, h);
  expect_rounded(found_u, u, "collapsed");
  const std::vector<double> weight(scene.norm_weight.begin(), scene.norm_weight.end());
  expect_rounded(bf16_row(out.y, t, h), hc_fused_norm_oracle(found_u, weight, eps), "y");
  const std::vector<double> y = bf16_row(out.y, t, h);
  const std::vector<float> row(y.begin(), y.end());
  std::vector<uint8_t> codes(row.size());
  std::vector<uint8_t> scales(row.size() / kHcQuantDims);
  numerics::quantize_q8(std::span<const float>(row), kHcQuantDims, codes, scales);
  EXPECT_TRUE(std::equal(codes.begin(), codes.end(), out.codes.begin() + t * h)) << "codes";
  EXPECT_TRUE(std::equal(scales.begin(), scales.end(), out.scales.begin() + t * h / kHcQuantDims))
      << "scales";
}

/// About `limit` tokens spread over the batch, first and last among them.
void expect_tokens(const HcScene& scene, const HcOutputs& out, int64_t limit) {
  const int64_t m = scene.shape.tokens;
  const int64_t step = std::max<int64_t>(1, m / limit);
  for (int64_t t = 0; t < m; t += step) {
    SCOPED_TRACE(::testing::Message()
                 << "token " << t << " of " << m << " width " << scene.shape.width << " form "
                 << static_cast<int>(scene.shape.form));
    expect_token(scene, out, t);
    if (::testing::Test::HasFailure()) {
      return;
    }
  }
  expect_token(scene, out, m - 1);
}

using Launcher = void (*)(const HcFusedParams&, device::StreamHandle);

HcOutputs run(const HyperConnectionGpu& /*test*/,
              HcScene& scene,
              const HcFusedParams& params,
              Launcher launcher,
              const device::Stream& stream) {
  launcher(params, stream.get());
  stream.synchronize();
  return scene.outputs();
}

TEST_F(HyperConnectionGpu, EqualsTheOracleAtEveryBatchSize) {
  for (const int32_t width : {4096, 7168}) {
    for (const int32_t tokens : {1, 2, 3, 8, 9, 31, 32, 33, 64, 65}) {
      HcScene scene({.tokens = tokens, .width = width}, static_cast<uint64_t>(tokens));
      expect_tokens(scene, run(*this, scene, scene.params(), hc_fused_sm90, owned_stream()), 4);
      if (HasFailure()) {
        return;
      }
    }
  }
}

TEST_F(HyperConnectionGpu, EqualsTheOracleInEveryForm) {
  for (const int32_t width : {4096, 7168}) {
    for (const HcForm form :
         {HcForm::kPost, HcForm::kFirstLayer, HcForm::kGivenStreams, HcForm::kHead}) {
      HcScene scene({.tokens = 5, .width = width, .form = form}, 3);
      const HcOutputs out = run(*this, scene, scene.params(), hc_fused_sm90, owned_stream());
      expect_tokens(scene, out, 5);
      if (form == HcForm::kHead) {  // no post and comb there: nothing may be written
        EXPECT_TRUE(std::isnan(out.post[0]) && std::isnan(out.comb[0]));
      }
    }
  }
}

TEST_F(HyperConnectionGpu, AddsPartialOutputsOfAllRanks) {
  for (const int32_t parts : {2, 4, 8}) {
    HcScene scene({.tokens = parts + 1, .parts = parts}, 5);
    expect_tokens(scene, run(*this, scene, scene.params(), hc_fused_sm90, owned_stream()), 3);
  }
}

TEST_F(HyperConnectionGpu, SaturatedMixesStayFinite) {
  HcScene scene({.tokens = 4, .fn_scale = 0.8F}, 6);  // mixes around +-100
  expect_tokens(scene, run(*this, scene, scene.params(), hc_fused_sm90, owned_stream()), 4);
}

TEST_F(HyperConnectionGpu, TransposedCombIsNoticed) {
  HcScene scene({.tokens = 1}, 7);
  const HcOutputs out = run(*this, scene, scene.params(), hc_fused_sm90, owned_stream());
  std::vector<double> transposed(16);
  for (std::size_t j = 0; j < 16; ++j) {
    transposed[j] = static_cast<double>(scene.comb[j % 4 * 4 + j / 4]);
  }
  const std::vector<std::vector<double>> parts = {bf16_row(scene.parts[0], 0, 4096)};
  const std::vector<double> wrong = hc_fused_streams_oracle(
      parts, bf16_row(scene.residual, 0, 4 * 4096), float_row(scene.post, 0, 4), transposed);
  const std::vector<double> found = bf16_row(out.streams, 0, 4 * 4096);
  int64_t different = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    different += found[i] != wrong[i] ? 1 : 0;
  }
  EXPECT_GT(different, 4096);
}

TEST_F(HyperConnectionGpu, LargeBatchesRepeatTheSmallOne) {
  for (const int32_t tokens : {1024, 8191}) {
    HcScene scene({.tokens = tokens, .period = 61}, 8);
    const HcOutputs out = run(*this, scene, scene.params(), hc_fused_sm90, owned_stream());
    expect_tokens(scene, out, 2);
    for (int64_t t = 61; t < tokens; ++t) {
      ASSERT_TRUE(std::equal(
          out.y.begin() + t * 4096, out.y.begin() + (t + 1) * 4096, out.y.begin() + t % 61 * 4096))
          << "token " << t;
      ASSERT_TRUE(std::equal(out.comb.begin() + t * 16,
                             out.comb.begin() + (t + 1) * 16,
                             out.comb.begin() + t % 61 * 16))
          << "token " << t;
    }
  }
}

TEST_F(HyperConnectionGpu, ATokenHasTheSameBitsInEveryBatch) {
  for (const int32_t width : {4096, 7168}) {
    HcScene all({.tokens = 300, .width = width}, 9);
    const HcOutputs expected = run(*this, all, all.params(), hc_fused_sm90, owned_stream());
    for (const int32_t tokens : {1, 2, 7, 16, 64, 65}) {
      all.paint();
      HcFusedParams params = all.params();
      params.num_tokens = tokens;
      const HcOutputs out = run(*this, all, params, hc_fused_sm90, owned_stream());
      const auto same = [&](const auto& a, const auto& b, int64_t row) {
        return std::equal(a.begin(), a.begin() + tokens * row, b.begin(), [](auto x, auto y) {
          return x == y || (x != x && y != y);
        });
      };
      EXPECT_TRUE(same(out.streams, expected.streams, 4 * width)) << tokens;
      EXPECT_TRUE(same(out.y, expected.y, width)) << tokens;
      EXPECT_TRUE(same(out.codes, expected.codes, width)) << tokens;
      EXPECT_TRUE(same(out.post, expected.post, 4)) << tokens;
      EXPECT_TRUE(same(out.comb, expected.comb, 16)) << tokens;
    }
  }
}

TEST_F(HyperConnectionGpu, AThousandLaunchesGiveEqualBits) {
  constexpr int kLaunches = 1000;
  constexpr int32_t kTokens = 7;
  HcScene scene({.tokens = kTokens}, 10);
  device::Buffer<uint16_t> y(int64_t{kLaunches} * kTokens * 4096);
  device::Buffer<float> comb(int64_t{kLaunches} * kTokens * 16);
  y.fill_bytes(0xFF);
  HcFusedParams params = scene.params();
  for (int i = 0; i < kLaunches; ++i) {
    params.y = y.data() + int64_t{i} * kTokens * 4096;
    params.comb_out = comb.data() + int64_t{i} * kTokens * 16;
    params.programmatic = i % 2 == 1;
    hc_fused_sm90(params, stream());
  }
  synchronize();
  const std::vector<uint16_t> rows = y.to_host();
  const std::vector<float> combs = comb.to_host();
  for (int i = 1; i < kLaunches; ++i) {
    ASSERT_TRUE(
        std::equal(rows.begin(), rows.begin() + kTokens * 4096, rows.begin() + i * kTokens * 4096))
        << "launch " << i;
    ASSERT_TRUE(
        std::equal(combs.begin(), combs.begin() + kTokens * 16, combs.begin() + i * kTokens * 16))
        << "launch " << i;
  }
}

TEST_F(HyperConnectionGpu, AProgrammaticChainEqualsAPlainOne) {
  // Each launch reads the streams, post and comb that the one before wrote, and its y as the
  // sub-layer's output; buffers are painted between replays, so a stale read shows.
  constexpr int kSteps = 6;
  HcScene first({.tokens = 3}, 11);
  std::vector<std::unique_ptr<HcScene>> steps;
  for (int i = 0; i < kSteps; ++i) {
    steps.push_back(
        std::make_unique<HcScene>(HcSceneShape{.tokens = 3}, 20 + static_cast<uint64_t>(i)));
  }
  const auto record = [&](cudaStream_t on, bool programmatic) {
    HcFusedParams before = first.params();
    for (auto& step : steps) {
      HcFusedParams params = step->params();
      params.residual = before.streams == first.params().streams ? before.residual : before.streams;
      if (before.streams != first.params().streams) {
        params.parts[0] = before.y;
        params.post = before.post_out;
        params.comb = before.comb_out;
      }
      params.programmatic = programmatic;
      hc_fused_sm90(params, on);
      before = params;
    }
  };
  const device::Graph plain =
      device::Graph::capture(owned_stream(), [&](cudaStream_t on) { record(on, false); });
  const device::Graph chain =
      device::Graph::capture(owned_stream(), [&](cudaStream_t on) { record(on, true); });
  plain.launch(owned_stream());
  synchronize();
  const HcOutputs expected = steps.back()->outputs();
  for (int replay = 0; replay < 20; ++replay) {
    for (auto& step : steps) {
      step->paint();
    }
    chain.launch(owned_stream());
    synchronize();
    ASSERT_EQ(steps.back()->outputs(), expected) << "replay " << replay;
  }
}

TEST_F(HyperConnectionGpu, WritesInPlace) {
  for (const int32_t width : {4096, 7168}) {
    for (const int32_t tokens : {1, 4, 20}) {  // few: the other place takes another form
      HcScene scene({.tokens = tokens, .width = width}, 12);
      const HcOutputs expected = run(*this, scene, scene.params(), hc_fused_sm90, owned_stream());
      HcFusedParams params = scene.params();
      params.streams = scene.residual_buffer.data();
      params.post_out = scene.post_buffer.data();
      params.comb_out = scene.comb_buffer.data();
      params.y = scene.part_buffers[0].data();
      run(*this, scene, params, hc_fused_sm90, owned_stream());
      EXPECT_EQ(scene.residual_buffer.to_host(), expected.streams) << tokens;
      EXPECT_EQ(scene.post_buffer.to_host(), expected.post) << tokens;
      EXPECT_EQ(scene.comb_buffer.to_host(), expected.comb) << tokens;
      EXPECT_EQ(scene.part_buffers[0].to_host(), expected.y) << tokens;
      EXPECT_EQ(scene.outputs().codes, expected.codes) << tokens;
    }
  }
}

TEST_F(HyperConnectionGpu, TheCardHoldsTheClustersOfADecodeStep) {
  for (const int32_t width : {4096, 7168}) {
    const int clusters = hc_fused_resident_clusters(width);
    std::printf("resident clusters width=%d: %d\n", width, clusters);
    EXPECT_GE(clusters, 6);  // 64 tokens at 11 per cluster
  }
}

TEST_F(HyperConnectionGpu, ZeroTokensWriteNothing) {
  HcScene scene({.tokens = 1}, 14);
  HcFusedParams params = scene.params();
  params.num_tokens = 0;
  EXPECT_EQ(run(*this, scene, params, hc_fused_sm90, owned_stream()).y[0], 0xFFFF);
  EXPECT_EQ(run(*this, scene, params, hc_fused_portable, owned_stream()).y[0], 0xFFFF);
}

TEST_F(HyperConnectionGpuSmall, PortableEqualsTheOracle) {
  for (const HcForm form :
       {HcForm::kPost, HcForm::kFirstLayer, HcForm::kGivenStreams, HcForm::kHead}) {
    for (const int32_t width : {128, 384, 640}) {
      HcScene scene({.tokens = 3, .width = width, .form = form, .fn_scale = 0.04F}, 15);
      hc_fused(scene.params(), stream());
      synchronize();
      expect_tokens(scene, scene.outputs(), 3);
    }
  }
}

// fn alone is 1.5 MB at the least width the cluster kernel has; the batch is as small as can be.
TEST_F(HyperConnectionGpuSmall, ClusterKernelOnFewTokens) {
  for (const int32_t tokens : {1, 4, 10}) {
    HcScene scene({.tokens = tokens}, 16);
    hc_fused_sm90(scene.params(), stream());
    synchronize();
    expect_token(scene, scene.outputs(), tokens - 1);
  }
}

}  // namespace
}  // namespace baleen::kernels
