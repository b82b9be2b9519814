// A stage of a weight ring must not be given back before its words are in registers. When it was,
// one launch in 7,000 of this scene multiplied the first block of an up tile with bytes of the copy
// after the next four.
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/experts/experts.h"
#include "kernels/experts/testing/expert_scene.h"
#include "kernels/experts/testing/repeated_launches.h"
#include "kernels/testing/gpu_test.h"

namespace baleen::kernels::testing {
namespace {

class ExpertsStressGpu : public GpuTest {
 protected:
  /// The results of every launch must agree. 24 tokens: some groups take a second up item; normal
  /// and FP8 units.
  void replay(int64_t tokens, int replays, const SceneShape& shape = medium_shape()) {
    ExpertScene scene(shape, 32);
    const SceneInput x = scene.input(tokens);
    ExpertBatch batch = scene.batch(x, scene.routes(tokens), scene.weights(tokens));
    build_expert_lists(batch.lists, stream());
    launch_experts(batch.params, stream());
    synchronize();
    EXPECT_EQ(differing_words(owned_stream(), batch, launch_experts, replays), 0)
        << "words differ within " << replays * kLaunchesOfReplay << " launches of " << tokens
        << " tokens";
  }
};

TEST_F(ExpertsStressGpu, AHundredThousandLaunchesAgree) {
  for (const int64_t tokens : {24, 64, 128}) {  // the last: runs, then single tiles
    replay(tokens, 10'000);
  }
}

/// Small steps whose hidden rows are words that tell by themselves whether they are there.
TEST_F(ExpertsStressGpu, AHundredThousandLaunchesOfFewTokensAgree) {
  SceneShape shape = published_shape(512, 64);
  shape.shared = false;
  for (const int64_t tokens : {2, 4, 16}) {
    replay(tokens, 10'000, shape);
  }
}

/// The form of one token: a cluster per expert, with rings that wait and rings that do not.
TEST_F(ExpertsStressGpu, AHundredThousandLaunchesOfOneTokenAgree) {
  for (const int32_t width : {512, 1024}) {
    SceneShape shape = published_shape(width, 6);
    shape.top = 6;
    shape.shared = false;
    replay(1, 10'000, shape);
  }
}

}  // namespace
}  // namespace baleen::kernels::testing
