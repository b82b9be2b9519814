#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/hyper_connection/hyper_connection_cpu.h"
#include "kernels/hyper_connection/hyper_connection_oracle.h"
#include "numerics/bfloat16.h"

namespace baleen::kernels {
namespace {

std::vector<double> hyper_wave(std::size_t count, double phase) {
  std::vector<double> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = std::sin(1.3 * static_cast<double>(i) + phase);
  }
  return values;
}

struct HyperScene {
  std::size_t n, width, tokens;
  std::vector<double> streams = hyper_wave(tokens * n * width, 0.1);
  std::vector<double> fn = hyper_wave((2 + n) * n * n * width, 0.2);
  std::vector<double> base = hyper_wave((2 + n) * n, 0.3);
  std::vector<double> scale = hyper_wave(3, 0.4);
  std::vector<double> sub = hyper_wave(tokens * width, 0.5);
  std::vector<double> y = std::vector<double>(tokens * width);
  std::vector<double> post = std::vector<double>(tokens * n);
  std::vector<double> comb = std::vector<double>(tokens * n * n);
  std::vector<double> out = std::vector<double>(tokens * n * width);

  HcMixArgs<double> args(bool rounded) {
    return {.streams = streams.data(),
            .fn = fn.data(),
            .base = base.data(),
            .scale = scale.data(),
            .y = y.data(),
            .post = post.data(),
            .comb = comb.data(),
            .tokens = static_cast<int64_t>(tokens),
            .num_streams = static_cast<int64_t>(n),
            .width = static_cast<int64_t>(width),
            .rms_norm_eps = 1e-6,
            .hc_eps = 1e-6,
            .sinkhorn_iters = 20,
            .rounded = rounded};
  }
  void post_step(bool rounded) {
    hc_post_cpu<double>({.y = sub.data(),
                         .streams = streams.data(),
                         .post = post.data(),
                         .comb = comb.data(),
                         .out = out.data(),
                         .tokens = static_cast<int64_t>(tokens),
                         .num_streams = static_cast<int64_t>(n),
                         .width = static_cast<int64_t>(width),
                         .rounded = rounded});
  }
};

void expect_near(std::span<const double> found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], 1e-12 * (1.0 + std::abs(expected[i])));
  }
}

TEST(HyperConnectionCpuTest, EqualsTheOracle) {
  for (const std::size_t n : {1U, 2U, 4U}) {
    for (const std::size_t width : {1U, 7U, 32U}) {
      HyperScene scene{n, width, 3};
      hc_pre_cpu(scene.args(false));
      scene.post_step(false);
      for (std::size_t t = 0; t < 3; ++t) {
        const auto x = std::span(scene.streams).subspan(t * n * width, n * width);
        const HcOracle mix = hc_pre_oracle(x, n, scene.fn, scene.base, scene.scale, 1e-6, 1e-6, 20);
        expect_near(std::span(scene.y).subspan(t * width, width), mix.y);
        expect_near(std::span(scene.post).subspan(t * n, n), mix.post);
        expect_near(std::span(scene.comb).subspan(t * n * n, n * n), mix.comb);
        expect_near(
            std::span(scene.out).subspan(t * n * width, n * width),
            hc_post_oracle(std::span(scene.sub).subspan(t * width, width), x, mix.post, mix.comb));
      }
      hc_head_cpu(scene.args(false));
      const auto x = std::span(scene.streams).subspan(0, n * width);
      const auto m = hc_mix_oracle(x, std::span(scene.fn).subspan(0, n * n * width), 1e-6);
      expect_near(std::span(scene.y).subspan(0, width),
                  hc_collapse_oracle(x, n, m, scene.base, scene.scale[0], 1e-6));
    }
  }
}

TEST(HyperConnectionCpuTest, StoredOutputsAreBf16AndTokensIndependent) {
  HyperScene scene{4, 16, 5};
  hc_pre_cpu(scene.args(true));
  scene.post_step(true);
  for (const double value : scene.out) {
    EXPECT_EQ(value, numerics::round_to_bf16(value));
  }
  HyperScene alone{4, 16, 1};
  alone.streams.assign(scene.streams.begin() + 4 * 64, scene.streams.end());
  hc_pre_cpu(alone.args(true));
  EXPECT_EQ(alone.y, std::vector<double>(scene.y.end() - 16, scene.y.end()));
  EXPECT_EQ(alone.comb, std::vector<double>(scene.comb.end() - 16, scene.comb.end()));
}

}  // namespace
}  // namespace baleen::kernels
