// Equal bits: over batches, neighbours, cuts of the launch, shards, repeats, and in a chain whose
// kernels start before their predecessors have ended.
#include <vector>

#include "kernels/linear/linear.h"
#include "kernels/linear/linear_case_test.h"
#include "kernels/testing/gpu_test.h"

namespace baleen::kernels {
namespace {

using testing::LinearCase;
using testing::params_of;
using LinearInvarianceGpu = testing::GpuTest;

/// Number of differing floats in the first `count`.
int64_t differences(const std::vector<float>& a, const std::vector<float>& b, int64_t count) {
  int64_t different = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    different += numerics::float_bits(a[i]) != numerics::float_bits(b[i]) ? 1 : 0;
  }
  return different;
}

TEST_F(LinearInvarianceGpu, RowKeepsItsBitsInEveryBatch) {
  for (const LinearMode mode : {LinearMode::kFast, LinearMode::kInvariant}) {
    for (const WeightFormat format : {WeightFormat::kE4m3, WeightFormat::kBf16}) {
      LinearCase one({.outputs = 1536, .inputs = 4096, .format = format}, 300, 21);
      launch_linear(params_of({one.task()}, 300, mode), stream());
      synchronize();
      const std::vector<float> whole = one.y_float();
      for (const int32_t tokens : {1, 2, 7, 16, 64, 65}) {
        one.paint();
        launch_linear(params_of({one.task()}, tokens, mode), stream());
        synchronize();
        EXPECT_EQ(differences(whole, one.y_float(), tokens * one.rows()), 0)
            << "M " << tokens << " format " << static_cast<int>(format) << " mode "
            << static_cast<int>(mode);
      }
    }
  }
}

// In invariant mode neither the cut of the launch nor other tasks in it touch the bits.
TEST_F(LinearInvarianceGpu, BitsDoNotDependOnTheCut) {
  LinearCase one({.outputs = 512, .inputs = 4096}, 9, 22);
  LinearCase other({.outputs = 1024, .inputs = 4096, .format = WeightFormat::kBf16}, 9, 23);
  LinearParams params = params_of({one.task(LinearOutput::kFloat32, 8)}, 9, LinearMode::kInvariant);
  launch_linear(params, stream());
  synchronize();
  const std::vector<float> expected = one.y_float();
  ASSERT_TRUE(one.agrees(expected, 9));
  for (const int32_t cluster : {4, 8}) {
    for (const int32_t clusters : {3, 8}) {
      for (const int32_t stages : {1, 3}) {
        one.paint();
        params.tuning = {.cluster = cluster, .num_clusters = clusters, .stages = stages};
        launch_linear(params, stream());
        synchronize();
        EXPECT_EQ(differences(expected, one.y_float(), 9 * 512), 0) << cluster << " " << clusters;
      }
    }
  }
  one.paint();
  launch_linear(
      params_of({one.task(LinearOutput::kFloat32, 8), other.task(LinearOutput::kFloat32, 8)},
                9,
                LinearMode::kInvariant),
      stream());
  synchronize();
  EXPECT_EQ(differences(expected, one.y_float(), 9 * 512), 0);
}

// A row-parallel product cut over 2 ranks: 4 leaves each, added by the upper levels of the tree.
TEST_F(LinearInvarianceGpu, ShardsAddUpToTheUnshardedBits) {
  LinearCase whole({.outputs = 256, .inputs = 2048}, 3, 24);
  launch_linear(params_of({whole.task(LinearOutput::kFloat32, 8)}, 3, LinearMode::kInvariant),
                stream());
  synchronize();
  const std::vector<float> expected = whole.y_float();
  std::vector<std::vector<float>> parts;
  for (int64_t shard = 0; shard < 2; ++shard) {
    LinearCase half({.outputs = 256, .inputs = 1024}, 3, 25);
    const auto copy = [&](std::vector<uint8_t>& to, const std::vector<uint8_t>& from, int64_t row) {
      for (int64_t at = 0; at < static_cast<int64_t>(to.size()); ++at) {
        to[static_cast<std::size_t>(at)] =
            from[static_cast<std::size_t>(at / row * 2 * row + shard * row + at % row)];
      }
    };
    copy(half.weight(), whole.weight(), 1024);
    copy(half.x(), whole.x(), 1024);
    copy(half.weight_scales(), whole.weight_scales(), 8);
    copy(half.x_scales(), whole.x_scales(), 8);
    half.upload();
    launch_linear(params_of({half.task(LinearOutput::kFloat32, 4)}, 3, LinearMode::kInvariant),
                  stream());
    synchronize();
    parts.push_back(half.y_float());
  }
  std::vector<float> sum(3 * 256);
  for (std::size_t i = 0; i < sum.size(); ++i) {
    sum[i] = parts[0][i] + parts[1][i];
  }
  EXPECT_EQ(differences(expected, sum, 3 * 256), 0);
}

TEST_F(LinearInvarianceGpu, ThousandLaunchesGiveEqualBits) {
  LinearCase one({.outputs = 1536, .inputs = 4096}, 4, 26);
  launch_linear(params_of({one.task()}, 4), stream());
  synchronize();
  const std::vector<float> expected = one.y_float();
  for (int round = 0; round < 20; ++round) {
    one.paint();
    for (int repeat = 0; repeat < 50; ++repeat) {
      LinearParams params = params_of({one.task()}, 4);
      params.programmatic = repeat > 0;
      launch_linear(params, stream());
    }
    synchronize();
    ASSERT_EQ(differences(expected, one.y_float(), 4 * 1536), 0) << round;
  }
}

// Kernel 2 reads what kernel 1 writes although it starts before kernel 1 has ended: x is painted
// between replays, so a read that came too early would show.
TEST_F(LinearInvarianceGpu, ChainWithRunAheadReadsFreshActivations) {
  LinearCase first({.outputs = 1024, .inputs = 4096, .format = WeightFormat::kBf16}, 8, 27);
  LinearCase second({.outputs = 4096, .inputs = 1024, .format = WeightFormat::kBf16}, 8, 28);
  device::Buffer<uint16_t> between(8 * 1024);
  LinearTask to = first.task(LinearOutput::kBf16);
  to.y = between.data();
  LinearTask from = second.task();
  from.x = between.data();
  const auto chain = [&](cudaStream_t s, bool programmatic) {
    LinearParams one = params_of({to}, 8);
    LinearParams two = params_of({from}, 8);
    one.programmatic = programmatic;
    two.programmatic = programmatic;
    launch_linear(one, s);
    launch_linear(two, s);
  };
  chain(stream(), false);
  synchronize();
  const std::vector<float> expected = second.y_float();
  const device::Graph graph = device::Graph::capture(owned_stream(), [&](cudaStream_t s) {
    for (int i = 0; i < 8; ++i) {
      chain(s, true);
    }
  });
  for (int round = 0; round < 30; ++round) {
    between.fill_bytes(0xFF);
    second.paint();
    graph.launch(owned_stream());
    synchronize();
    ASSERT_EQ(differences(expected, second.y_float(), 8 * 4096), 0) << round;
  }
}

}  // namespace
}  // namespace baleen::kernels
