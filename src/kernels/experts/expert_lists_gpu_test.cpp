#include <algorithm>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "device/buffer.h"
#include "kernels/experts/expert_lists.h"
#include "kernels/testing/gpu_test.h"
#include "kernels/testing/random_values.h"

namespace baleen::kernels::testing {
namespace {

using ExpertListsGpuSmall = GpuTest;

TEST_F(ExpertListsGpuSmall, EqualAStableSort) {
  RandomValues random(41);
  for (const int32_t tokens : {0, 1, 2, 7, 33, 65, 257, 1024}) {
    for (const bool shared : {false, true}) {
      for (const int32_t experts : {3, 256, 512}) {
        const int32_t top = std::min(6, experts);
        const int32_t slots = top + (shared ? 1 : 0);
        std::vector<int32_t> routes;
        for (int32_t i = 0; i < tokens * top; ++i) {
          // Skewed, with repeats.
          routes.push_back(static_cast<int32_t>(
              std::min(random.integer(0, experts - 1), random.integer(0, experts - 1))));
        }
        const std::vector<float> weights = random.normals(tokens * top);
        auto device_routes = device::Buffer<int32_t>::from_host(routes);
        auto device_weights = device::Buffer<float>::from_host(weights);
        device::Buffer<int32_t> num_units(1);
        device::Buffer<ExpertUnit> units(
            std::max<int64_t>(1, max_expert_units(tokens, top, experts, shared)));
        num_units.fill_bytes(0xFF);
        units.fill_bytes(0xFF);
        BALEEN_CUDA_CHECK(cudaDeviceSynchronize());
        build_expert_lists({.routes = device_routes.data(),
                            .weights = device_weights.data(),
                            .num_tokens = tokens,
                            .top = top,
                            .num_experts = experts,
                            .shared_expert = shared,
                            .lists = {num_units.data(), units.data()}},
                           stream());
        synchronize();
        std::vector<int32_t> order(routes.size());
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
          return routes[static_cast<std::size_t>(a)] < routes[static_cast<std::size_t>(b)];
        });
        const int32_t count = num_units.to_host()[0];
        const auto got_units = units.to_host();
        for (int32_t u = 0; u < count; ++u) {
          const ExpertUnit& unit = got_units[static_cast<std::size_t>(u)];
          for (int32_t i = 0; i < unit.count; ++i) {
            const int32_t at = unit.begin + i;
            if (at < tokens * top) {
              const int32_t route = order[static_cast<std::size_t>(at)];
              ASSERT_EQ(unit.entries[i], route / top * slots + route % top)
                  << tokens << " at " << at;
              ASSERT_EQ(unit.weights[i], weights[static_cast<std::size_t>(route)]);
            } else {
              ASSERT_EQ(unit.entries[i], (at - tokens * top) * slots + top);
              ASSERT_EQ(unit.weights[i], 1.0F);
            }
          }
        }
        // Units: the shared expert first, then runs of at most 8 of each expert.
        int32_t u = 0;
        const auto expect_units = [&](int32_t expert, int32_t begin, int32_t length) {
          for (int32_t first = 0; first < length; first += kExpertUnitTokens, ++u) {
            ASSERT_LT(u, count);
            const ExpertUnit& unit = got_units[static_cast<std::size_t>(u)];
            ASSERT_EQ(unit.expert, expert);
            ASSERT_EQ(unit.begin, begin + first);
            ASSERT_EQ(unit.count, std::min(kExpertUnitTokens, length - first));
          }
        };
        if (shared) {
          expect_units(experts, tokens * top, tokens);
        }
        int32_t begin = 0;
        for (int32_t e = 0; e < experts; ++e) {
          const auto length = static_cast<int32_t>(std::count(routes.begin(), routes.end(), e));
          expect_units(e, begin, length);
          begin += length;
        }
        ASSERT_EQ(u, count);
      }
    }
  }
}

TEST_F(ExpertListsGpuSmall, SizesBeyondTheLimitsAbort) {
  EXPECT_DEATH(build_expert_lists({.num_tokens = 1025, .top = 6, .num_experts = 256}, nullptr),
               "tokens=1025");
  EXPECT_DEATH(build_expert_lists({.num_tokens = 1, .top = 8, .num_experts = 256}, nullptr),
               "top=8");
  EXPECT_DEATH(build_expert_lists({.num_tokens = 1, .top = 6, .num_experts = 513}, nullptr),
               "experts=513");
}

}  // namespace
}  // namespace baleen::kernels::testing
