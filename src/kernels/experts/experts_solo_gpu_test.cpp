// One token: the cluster form against the persistent form (equal bytes), and against itself over
// many launches.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/experts/expert_forms.h"
#include "kernels/experts/testing/expert_scene.h"
#include "kernels/experts/testing/repeated_launches.h"
#include "kernels/testing/gpu_test.h"

namespace baleen::kernels::testing {
namespace {

class ExpertsSoloGpuSmall : public GpuTest {
 protected:
  using Launch = void (*)(const ExpertsParams&, device::StreamHandle);

  struct Result {
    std::vector<std::byte> y, workspace;
  };
  Result run(ExpertBatch& batch, Launch launch) {
    ExpertScene::paint(batch.y);
    build_expert_lists(batch.lists, stream());
    launch(batch.params, stream());
    synchronize();
    return {batch.y.to_host(), batch.workspace.to_host()};
  }
  /// Result, hidden rows, slots and (zero) counters of both forms.
  void compare(ExpertScene& scene, const std::vector<int32_t>& routes, const std::string& what) {
    for (const MoeRound round : {MoeRound::kPerExpert, MoeRound::kAfterSum}) {
      const SceneInput x = scene.input(1);
      ExpertBatch batch = scene.batch(x, routes, scene.weights(1), round);
      ASSERT_TRUE(experts::solo_supported(batch.params)) << what;
      const Result expected = run(batch, experts::launch_persistent);
      const auto fresh = experts_workspace(batch.params);
      std::vector<std::byte> painted(expected.workspace.size(), std::byte{0xFF});
      std::fill(painted.begin(), painted.begin() + fresh.counter_bytes, std::byte{0});
      batch.workspace.copy_from_host(painted);
      for (int i = 0; i < 3; ++i) {
        const Result actual = run(batch, experts::launch_solo);
        EXPECT_TRUE(actual.y == expected.y) << what << " launch " << i;
        EXPECT_TRUE(actual.workspace == expected.workspace) << what << " launch " << i;
      }
    }
  }
};
class ExpertsSoloGpu : public ExpertsSoloGpuSmall {};

TEST_F(ExpertsSoloGpuSmall, BytesOfThePersistentForm) {
  struct Case {
    int32_t hidden, width, leaf_blocks;
  };
  // One leaf of the up product, uneven ones, all; one to eight leaves of the down product; blocks
  // with and without tiles of their own; odd numbers of blocks; several rounds of the ring.
  for (const Case& c : std::vector<Case>{{128, 128, 1},
                                         {128, 512, 2},
                                         {256, 384, 3},
                                         {384, 2048, 2},
                                         {640, 128, 1},
                                         {640, 640, 1},
                                         {1024, 512, 1},
                                         {1024, 512, 2},
                                         {1024, 1024, 1},
                                         {1280, 896, 2},
                                         {1280, 1280, 3}}) {
    ExpertScene scene({.hidden = c.hidden,
                       .width = c.width,
                       .num_experts = 3,
                       .top = 2,
                       .leaf_blocks = c.leaf_blocks},
                      41);
    compare(scene,
            {0, 2},
            "hidden " + std::to_string(c.hidden) + " width " + std::to_string(c.width) + " leaf " +
                std::to_string(c.leaf_blocks));
  }
}

TEST_F(ExpertsSoloGpuSmall, RepeatedExpertsAndOneSlot) {
  ExpertScene scene({.hidden = 256, .width = 512, .num_experts = 5, .top = 4}, 42);
  for (const std::vector<int32_t>& routes :
       {std::vector<int32_t>{2, 2, 2, 2}, {0, 3, 3, 4}, {1, 1, 4, 4}, {4, 3, 1, 0}}) {
    compare(scene, routes, "repeated");
  }
  ExpertScene one({.hidden = 256, .width = 256, .num_experts = 1, .top = 1}, 43);
  compare(one, {0}, "one slot");
}

TEST_F(ExpertsSoloGpuSmall, WhatItDoesNotSupport) {
  ExpertScene scene({.top = 2, .shared = true}, 44);
  ExpertBatch batch = scene.batch(scene.input(1), {0, 1}, {1, 1});
  EXPECT_FALSE(experts::solo_supported(batch.params));
  ExpertScene routed({.top = 2}, 45);
  ExpertBatch two = routed.batch(routed.input(2), {0, 1, 0, 1}, {1, 1, 1, 1});
  EXPECT_FALSE(experts::solo_supported(two.params));
  ExpertScene few({.num_experts = 2, .top = 4}, 46);  // its list has fewer units than slots
  ExpertBatch repeated = few.batch(few.input(1), {0, 1, 1, 0}, {1, 1, 1, 1});
  EXPECT_FALSE(experts::solo_supported(repeated.params));
}

TEST(ExpertsWorkspaceTest, OneForManyTokensIsLargeEnoughForFew) {
  for (const int32_t width : {128, 512, 2048}) {
    for (const MoeRound round : {MoeRound::kPerExpert, MoeRound::kAfterSum}) {
      ExpertsParams params{.hidden = 4096,
                           .width = width,
                           .slots = 7,
                           .num_experts = 256,
                           .leaf_blocks = 2,
                           .round = round};
      int64_t before = 0;
      for (params.num_tokens = 1; params.num_tokens <= kMaxListTokens; ++params.num_tokens) {
        const ExpertsWorkspace place = experts_workspace(params);
        const int64_t entries = int64_t{params.num_tokens} * params.slots;
        const int64_t element = round == MoeRound::kPerExpert ? 2 : 4;
        ASSERT_GE(place.bytes, before) << params.num_tokens;
        ASSERT_GE(place.slot_rows, place.hidden_rows + entries * width * 2);
        ASSERT_GE(place.bytes, place.slot_rows + entries * params.hidden * element);
        before = place.bytes;
      }
    }
  }
}

/// The published widths, whole and in shares: rings with and without waiting.
TEST_F(ExpertsSoloGpu, PublishedShapesOverAThousandLaunches) {
  for (const int32_t width : {512, 1024, 2048}) {
    const int32_t experts = 3072 / width;  // 6, 3, 1
    SceneShape shape = published_shape(width, experts);
    shape.top = experts;
    shape.shared = false;
    ExpertScene scene(shape, 46);
    std::vector<int32_t> routes(static_cast<std::size_t>(experts));
    std::iota(routes.begin(), routes.end(), 0);
    compare(scene, routes, "published " + std::to_string(width));
    ExpertBatch batch = scene.batch(scene.input(1), routes, scene.weights(1));
    run(batch, experts::launch_persistent);
    EXPECT_EQ(differing_words(owned_stream(), batch, experts::launch_solo, 100), 0) << width;
  }
}

}  // namespace
}  // namespace baleen::kernels::testing
