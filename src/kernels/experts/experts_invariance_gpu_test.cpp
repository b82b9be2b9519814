// Bits of the expert step: a row's result depends on nothing but its own inputs, and repeats.
#include <cstring>

#include <gtest/gtest.h>

#include "device/stream.h"
#include "kernels/experts/testing/expert_scene.h"
#include "kernels/testing/gpu_test.h"

namespace baleen::kernels::testing {
namespace {

using ExpertsInvarianceGpu = GpuTest;

TEST_F(ExpertsInvarianceGpu, ARowHasTheSameBitsInEveryBatch) {
  ExpertScene scene(medium_shape(), 31);
  const int64_t most = 257;
  const SceneInput x = scene.input(most);
  const auto routes = scene.routes(most);
  const auto weights = scene.weights(most);
  const auto row_bytes = static_cast<std::size_t>(scene.shape().hidden) * 2;
  ExpertBatch all = scene.batch(x, routes, weights);
  build_expert_lists(all.lists, stream());
  launch_experts(all.params, stream());
  synchronize();
  const std::vector<std::byte> expected = all.y.to_host();
  for (const int64_t tokens : {1, 2, 7, 16, 64, 256}) {
    for (const int64_t begin : {int64_t{0}, int64_t{1}, most - tokens}) {
      const auto slice = [&](const auto& values, int64_t per_token) {
        return std::vector(values.begin() + begin * per_token,
                           values.begin() + (begin + tokens) * per_token);
      };
      const SceneInput part{
          slice(x.codes, scene.shape().hidden), slice(x.scales, scene.shape().hidden / 128), {}};
      ExpertBatch batch =
          scene.batch(part, slice(routes, scene.shape().top), slice(weights, scene.shape().top));
      build_expert_lists(batch.lists, stream());
      launch_experts(batch.params, stream());
      synchronize();
      const std::vector<std::byte> y = batch.y.to_host();
      for (std::size_t t = 0; t < static_cast<std::size_t>(tokens); ++t) {
        ASSERT_EQ(std::memcmp(y.data() + t * row_bytes,
                              expected.data() + (static_cast<std::size_t>(begin) + t) * row_bytes,
                              row_bytes),
                  0)
            << tokens << " tokens from " << begin << ", row " << t;
      }
    }
  }
}

TEST_F(ExpertsInvarianceGpu, AThousandReplaysGiveEqualBits) {
  ExpertScene scene(medium_shape(), 32);
  for (const int64_t tokens : {1, 24}) {
    const SceneInput x = scene.input(tokens);
    ExpertBatch batch = scene.batch(x, scene.routes(tokens), scene.weights(tokens));
    const device::Graph graph = device::Graph::capture(owned_stream(), [&](cudaStream_t s) {
      for (int i = 0; i < 10; ++i) {
        build_expert_lists(batch.lists, s);
        launch_experts(batch.params, s);
      }
    });
    graph.launch(owned_stream());
    synchronize();
    const std::vector<std::byte> expected = batch.y.to_host();
    for (int replay = 0; replay < 100; ++replay) {
      ExpertScene::paint(batch.y);
      graph.launch(owned_stream());
      synchronize();
      ASSERT_EQ(batch.y.to_host(), expected) << "replay " << replay;
    }
  }
}

}  // namespace
}  // namespace baleen::kernels::testing
