#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "device/buffer.h"
#include "kernels/router/router.h"
#include "kernels/router/router_oracle.h"
#include "kernels/testing/gpu_test.h"
#include "kernels/testing/random_values.h"

namespace baleen::kernels::testing {
namespace {

struct Routes {
  std::vector<int32_t> ids;
  std::vector<float> weights;
  std::vector<uint16_t> record;
  int32_t num_units = -1;
};

class RouterGpuSmall : public GpuTest {
 protected:
  Routes route(const std::vector<float>& logits,
               const std::vector<float>& bias,
               int32_t experts,
               int32_t top,
               float scale,
               const std::vector<int32_t>& table = {},
               const std::vector<int32_t>& token_ids = {}) {
    const auto tokens = static_cast<int32_t>(logits.size()) / experts;
    auto device_logits = device::Buffer<float>::from_host(logits);
    auto device_bias = device::Buffer<float>::from_host(bias);
    auto device_table = device::Buffer<int32_t>::from_host(table);
    auto device_tokens = device::Buffer<int32_t>::from_host(token_ids);
    device::Buffer<int32_t> ids(tokens * top);
    device::Buffer<float> weights(tokens * top);
    device::Buffer<uint16_t> record(int64_t{tokens} * 3 * top);
    record.fill_bytes(0xEE);
    BALEEN_CUDA_CHECK(cudaDeviceSynchronize());
    device::Buffer<int32_t> num_units(1);
    device::Buffer<ExpertUnit> units(
        std::max<int64_t>(1, max_expert_units(tokens, top, experts, true)));
    num_units.fill_bytes(0xFF);
    units.fill_bytes(0xFF);
    auto counter = device::Buffer<int32_t>::from_host(std::vector<int32_t>{0});
    const bool bytes = experts <= 256;
    for (int repeat = 0; repeat < 2; ++repeat) {  // the counter resets itself
      launch_router(
          {.logits = device_logits.data(),
           .bias = bias.empty() ? nullptr : device_bias.data(),
           .table = table.empty() ? nullptr : device_table.data(),
           .token_ids = device_tokens.data(),
           .routes = ids.data(),
           .weights = weights.data(),
           // The middle of three layers.
           .record = bytes ? static_cast<void*>(reinterpret_cast<uint8_t*>(record.data()) + top)
                           : static_cast<void*>(record.data() + top),
           .record_stride = 3 * top,
           .counter = counter.data(),
           .num_tokens = tokens,
           .num_experts = experts,
           .top = top,
           .scale = scale,
           .shared_expert = true,
           .lists = {num_units.data(), units.data()}},
          stream());
    }
    synchronize();
    Routes routes{ids.to_host(), weights.to_host(), {}, num_units.to_host()[0]};
    const std::vector<uint16_t> words = record.to_host();
    const auto* codes = reinterpret_cast<const uint8_t*>(words.data());
    for (int32_t t = 0; t < tokens; ++t) {
      for (int32_t s = 0; s < 3 * top; ++s) {
        const auto at = static_cast<std::size_t>(t * 3 * top + s);
        const uint16_t value = bytes ? codes[at] : words[at];
        if (s >= top && s < 2 * top) {
          routes.record.push_back(value);
        } else {
          EXPECT_EQ(value, bytes ? 0xEE : 0xEEEE) << "another layer's record";
        }
      }
    }
    return routes;
  }

  /// Same choice (float scores, so that ties agree), weights within float rounding.
  static void expect_oracle(const Routes& got,
                            const std::vector<float>& logits,
                            const std::vector<float>& bias,
                            int32_t experts,
                            int32_t top,
                            float scale,
                            const std::vector<int32_t>& rows = {}) {
    for (std::size_t t = 0; t * static_cast<std::size_t>(experts) < logits.size(); ++t) {
      std::vector<double> scores;
      for (int32_t e = 0; e < experts; ++e) {
        scores.push_back(router_score_oracle(static_cast<double>(
            logits[t * static_cast<std::size_t>(experts) + static_cast<std::size_t>(e)])));
      }
      std::vector<int64_t> chosen;
      if (rows.empty()) {
        const std::vector<double> wide(bias.begin(), bias.end());
        chosen = route_oracle(scores, wide, static_cast<std::size_t>(top));
      } else {
        chosen.assign(rows.begin() + static_cast<int64_t>(t) * top,
                      rows.begin() + static_cast<int64_t>(t + 1) * top);
      }
      std::sort(chosen.begin(), chosen.end());
      const std::vector<double> weights =
          route_weights_oracle(scores, chosen, static_cast<double>(scale), 0.0);
      for (std::size_t i = 0; i < chosen.size(); ++i) {
        const std::size_t at = t * static_cast<std::size_t>(top) + i;
        ASSERT_EQ(got.ids[at], chosen[i]) << "token " << t << " slot " << i;
        ASSERT_EQ(got.record[at], chosen[i]);
        ASSERT_NEAR(got.weights[at], weights[i], 2e-6 * std::abs(weights[i])) << "token " << t;
      }
    }
  }
};

TEST_F(RouterGpuSmall, RandomLogitsAgainstTheOracle) {
  RandomValues random(51);
  for (const int32_t experts : {7, 160, 256, 384, 512}) {
    for (const int32_t tokens : {1, 2, 8, 9, 65}) {
      // Spread enough that float and double scores order alike.
      const auto logits = random.normals(int64_t{tokens} * experts, 3.0F);
      const auto bias = random.normals(experts, 0.5F);
      const Routes got = route(logits, bias, experts, 6, 1.5F);
      expect_oracle(got, logits, bias, experts, 6, 1.5F);
      expect_oracle(route(logits, {}, experts, 6, 2.5F), logits, {}, experts, 6, 2.5F);
      EXPECT_GE(got.num_units, 1 + (tokens + 15) / 16);
    }
  }
}

TEST_F(RouterGpuSmall, TiesGoToTheLowerExpert) {
  const int32_t experts = 256;
  std::vector<float> logits(experts, 0.25F);
  expect_oracle(route(logits, {}, experts, 6, 1.5F), logits, {}, experts, 6, 1.5F);
  logits[200] = logits[40] = 1.0F;
  logits[41] = 0.5F;
  const Routes got = route(logits, {}, experts, 6, 1.5F);
  EXPECT_EQ(got.ids, (std::vector<int32_t>{0, 1, 2, 40, 41, 200}));
}

TEST_F(RouterGpuSmall, NanAndInfiniteLogits) {
  const int32_t experts = 64;
  std::vector<float> logits(experts, std::numeric_limits<float>::quiet_NaN());
  logits[9] = -std::numeric_limits<float>::infinity();
  logits[63] = 1.0F;
  logits[5] = 2.0F;
  const Routes got = route(logits, {}, experts, 6, 1.0F);
  EXPECT_EQ(got.ids, (std::vector<int32_t>{0, 1, 2, 5, 9, 63}));
}

TEST_F(RouterGpuSmall, UnderflownScoresShareTheScale) {
  const int32_t experts = 256;
  const std::vector<float> logits(2 * experts, -200.0F);
  const Routes got = route(logits, {}, experts, 6, 1.5F);
  EXPECT_EQ(got.weights, std::vector<float>(12, 1.5F / 6));
}

TEST_F(RouterGpuSmall, LargeLogitsAreTheirOwnSoftplus) {
  RandomValues random(52);
  std::vector<float> logits = random.normals(256, 40.0F);
  logits[3] = 20.0F;
  logits[4] = std::nextafter(20.0F, 21.0F);
  expect_oracle(route(logits, {}, 256, 6, 1.5F), logits, {}, 256, 6, 1.5F);
}

TEST_F(RouterGpuSmall, TableRowsKeepRepeatsAndAscend) {
  RandomValues random(53);
  const int32_t experts = 256;
  const std::vector<int32_t> table{9, 3, 250, 3, 17, 0, 5, 4, 3, 2, 1, 0};
  const std::vector<int32_t> token_ids{1, 0, 0};
  const auto logits = random.normals(3 * experts, 2.0F);
  std::vector<int32_t> rows;
  for (const int32_t id : token_ids) {
    rows.insert(rows.end(), table.begin() + id * 6, table.begin() + (id + 1) * 6);
  }
  expect_oracle(route(logits, random.normals(experts), experts, 6, 1.5F, table, token_ids),
                logits,
                {},
                experts,
                6,
                1.5F,
                rows);
}

TEST_F(RouterGpuSmall, NoTokens) {
  EXPECT_EQ(route({}, {}, 256, 6, 1.5F).num_units, 0);
}

TEST_F(RouterGpuSmall, SizesBeyondTheLimitsAbort) {
  EXPECT_DEATH(launch_router({.num_tokens = 2000, .num_experts = 256, .top = 6}, nullptr),
               "tokens=2000");
  EXPECT_DEATH(launch_router({.num_tokens = 1, .num_experts = 4, .top = 6}, nullptr), "top=6");
}

}  // namespace
}  // namespace baleen::kernels::testing
