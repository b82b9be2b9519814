// Experts of a pass of prompts: the bits of kernels/experts, which answers to the oracle, for every
// number of tokens per expert around the borders of units and groups.

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "device/stream.h"
#include "kernels/experts/testing/expert_scene.h"
#include "kernels/experts_prompt/experts_prompt.h"
#include "kernels/testing/gpu_test.h"

namespace baleen::kernels::testing {
namespace {

class ExpertsPromptGpuSmall : public GpuTest {
 protected:
  /// Both kernels on the same lists; the prompt's in a workspace full of NaN.
  void expect_bits_of_experts(ExpertScene& scene,
                              const std::vector<int32_t>& routes,
                              MoeRound round,
                              const std::string& what) {
    const auto tokens = static_cast<int64_t>(routes.size()) / scene.shape().top;
    ExpertBatch batch = scene.batch(scene.input(tokens), routes, scene.weights(tokens), round);
    build_expert_lists(batch.lists, stream());
    launch_experts(batch.params, stream());
    synchronize();
    const std::vector<std::byte> expected = batch.y.to_host();
    ExpertScene::paint(batch.y);
    device::Buffer<std::byte> workspace(experts_prompt_workspace(batch.params).bytes);
    ExpertScene::paint(workspace);
    ExpertsParams params = batch.params;
    params.workspace = workspace.data();
    launch_experts_prompt(params, stream());
    synchronize();
    const std::vector<std::byte> found = batch.y.to_host();
    const std::size_t row_bytes = found.size() / static_cast<std::size_t>(tokens);
    int64_t different = 0;
    int64_t first = -1;
    for (std::size_t t = 0; t < static_cast<std::size_t>(tokens); ++t) {
      if (std::memcmp(&found[t * row_bytes], &expected[t * row_bytes], row_bytes) != 0) {
        first = different++ == 0 ? static_cast<int64_t>(t) : first;
      }
    }
    EXPECT_EQ(different, 0) << what << ": of " << tokens << " rows, first " << first;
  }
};
class ExpertsPromptGpu : public ExpertsPromptGpuSmall {};

TEST_F(ExpertsPromptGpuSmall, BatchesGiveTheBitsOfTheExpertsOfADecodeStep) {
  for (const bool shared : {false, true}) {
    ExpertScene scene({.top = 3, .shared = shared}, 41);
    for (const int64_t tokens : {1, 7, 8, 9, 33, 65, 130}) {
      for (const MoeRound round : {MoeRound::kPerExpert, MoeRound::kAfterSum}) {
        expect_bits_of_experts(
            scene, scene.routes(tokens), round, std::to_string(tokens) + (shared ? " shared" : ""));
      }
    }
  }
}

TEST_F(ExpertsPromptGpuSmall, EveryNumberOfTokensOfAnExpert) {
  // Expert 1 gets `count` tokens, expert 3 the others; the shared expert all of them.
  for (const bool shared : {false, true}) {
    ExpertScene scene({.num_experts = 5, .top = 1, .shared = shared}, 42);
    for (const int32_t count : {1, 8, 9, 16, 17, 24, 25, 31, 32, 33, 63, 64, 65, 97}) {
      std::vector<int32_t> routes;
      for (int32_t t = 0; t < 100; ++t) {
        routes.push_back(t < count ? 1 : 3);
      }
      expect_bits_of_experts(
          scene, routes, MoeRound::kPerExpert, std::to_string(count) + (shared ? " shared" : ""));
    }
  }
}

TEST_F(ExpertsPromptGpuSmall, EveryNumberOfBlocksAndLeavesOfManyTokens) {
  for (const int32_t width : {128, 256, 384, 640, 1024}) {
    for (const int32_t leaf_blocks : {1, 2, 3}) {
      if (width / 128 > 8 * leaf_blocks) {
        continue;
      }
      ExpertScene scene({.hidden = width == 384 ? 640 : 128,
                         .width = width,
                         .num_experts = 2,
                         .top = 2,
                         .shared = width <= 384,
                         .leaf_blocks = leaf_blocks},
                        43);
      expect_bits_of_experts(
          scene,
          scene.routes(19),
          MoeRound::kAfterSum,
          "width " + std::to_string(width) + " leaf " + std::to_string(leaf_blocks));
    }
  }
}

TEST_F(ExpertsPromptGpuSmall, ZeroTokensAndShapesThatAreNotCovered) {
  ExpertScene scene({}, 44);
  ExpertBatch empty = scene.batch({}, {}, {});
  launch_experts_prompt(empty.params, stream());
  synchronize();
  ExpertBatch batch = scene.batch(scene.input(1), {0, 1, 2}, {1, 1, 1});
  batch.params.width = 96;
  EXPECT_DEATH(launch_experts_prompt(batch.params, nullptr), "width=96");
}

/// The published widths, 1,024 tokens over a few experts: groups of every kind.
TEST_F(ExpertsPromptGpu, PublishedWidthsGiveTheBitsOfTheExpertsOfADecodeStep) {
  ExpertScene scene(published_shape(2048, 6), 45);
  for (const int64_t tokens : {70, 1024}) {
    expect_bits_of_experts(
        scene, scene.routes(tokens), MoeRound::kPerExpert, std::to_string(tokens));
  }
}

TEST_F(ExpertsPromptGpu, HundredsOfReplaysGiveEqualBits) {
  ExpertScene scene(medium_shape(), 46);
  constexpr int64_t kTokens = 200;
  ExpertBatch batch =
      scene.batch(scene.input(kTokens), scene.routes(kTokens), scene.weights(kTokens));
  build_expert_lists(batch.lists, stream());
  synchronize();
  device::Buffer<std::byte> workspace(experts_prompt_workspace(batch.params).bytes);
  ExpertScene::paint(workspace);
  batch.params.workspace = workspace.data();
  const device::Graph graph = device::Graph::capture(owned_stream(), [&](cudaStream_t s) {
    for (int i = 0; i < 10; ++i) {
      launch_experts_prompt(batch.params, s);
    }
  });
  graph.launch(owned_stream());
  synchronize();
  const std::vector<std::byte> expected = batch.y.to_host();
  for (int replay = 0; replay < 200; ++replay) {
    ExpertScene::paint(batch.y);
    graph.launch(owned_stream());
    synchronize();
    ASSERT_EQ(batch.y.to_host(), expected) << "replay " << replay;
  }
}

}  // namespace
}  // namespace baleen::kernels::testing
