// A stage of a weight ring must not be given back before its words are in registers. When it was,
// one launch in 7,000 of this scene multiplied the first block of an up tile with bytes of the copy
// after the next four.
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "device/stream.h"
#include "kernels/experts/experts.h"
#include "kernels/experts/testing/expert_scene.h"
#include "kernels/repeats/repeats.h"
#include "kernels/testing/gpu_test.h"

namespace baleen::kernels::testing {
namespace {

constexpr int kLaunches = 10;  // of a replay, each with a result of its own

class ExpertsStressGpu : public GpuTest {
 protected:
  /// The results of every launch must agree. 24 tokens: some groups take a second up item; normal
  /// and FP8 units.
  void replay(int64_t tokens, int replays) {
    ExpertScene scene(medium_shape(), 32);
    const SceneInput x = scene.input(tokens);
    ExpertBatch batch = scene.batch(x, scene.routes(tokens), scene.weights(tokens));
    build_expert_lists(batch.lists, stream());
    launch_experts(batch.params, stream());
    synchronize();
    const auto bytes = static_cast<int64_t>(batch.y.bytes());
    device::Buffer<std::byte> results(bytes * kLaunches);
    device::Buffer<unsigned long long> differences(1);
    differences.fill_bytes(0);
    BALEEN_CUDA_CHECK(cudaDeviceSynchronize());
    const device::Graph graph = device::Graph::capture(owned_stream(), [&](cudaStream_t s) {
      for (int i = 0; i < kLaunches; ++i) {
        ExpertsParams params = batch.params;
        params.y = results.data() + i * bytes;
        launch_experts(params, s);
      }
      launch_count_differences(
          results.data(), batch.y.data(), bytes / 4, kLaunches, differences.data(), s);
    });
    for (int i = 0; i < replays; ++i) {
      graph.launch(owned_stream());
    }
    synchronize();
    EXPECT_EQ(differences.to_host()[0], 0)
        << "words differ within " << replays * kLaunches << " launches of " << tokens << " tokens";
  }
};

TEST_F(ExpertsStressGpu, AHundredThousandLaunchesAgree) {
  for (const int64_t tokens : {24, 64, 128}) {  // the last: runs, then single tiles
    replay(tokens, 10'000);
  }
}

}  // namespace
}  // namespace baleen::kernels::testing
