// Every implementation of linears against the oracle, over formats, token counts, cuts and the
// edges of scales and padding.
#include <array>
#include <vector>

#include "device/buffer.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_case_test.h"
#include "kernels/linear/linear_plan.h"
#include "kernels/testing/gpu_test.h"
#include "numerics/bfloat16.h"

namespace baleen::kernels {
namespace {

using testing::as_floats;
using testing::LinearCase;
using testing::params_of;
using LinearGpuSmall = testing::GpuTest;
using LinearGpu = testing::GpuTest;

constexpr std::array<int32_t, 12> kTokenCounts = {1, 2, 3, 7, 8, 9, 16, 17, 31, 33, 64, 65};

TEST_F(LinearGpuSmall, MatchesOracleAtEveryTokenCount) {
  for (const WeightFormat format : {WeightFormat::kE4m3, WeightFormat::kBf16}) {
    LinearCase one({.outputs = 128, .inputs = 512, .format = format}, 65, 1);
    for (const int32_t tokens : kTokenCounts) {
      one.paint();
      launch_linear(params_of({one.task()}, tokens), stream());
      synchronize();
      const std::vector<float> y = one.y_float();
      EXPECT_TRUE(one.agrees(y, tokens))
          << "format " << static_cast<int>(format) << " M " << tokens;
      EXPECT_TRUE(std::isnan(y[static_cast<std::size_t>(tokens * one.rows())]))
          << "wrote past the last token, M " << tokens;
    }
  }
}

TEST_F(LinearGpuSmall, PortableMatchesOracle) {
  for (const WeightFormat format : {WeightFormat::kE4m3, WeightFormat::kBf16}) {
    LinearCase one({.outputs = 192, .inputs = 1024, .format = format}, 5, 2);
    launch_linear_portable(params_of({one.task()}, 5), stream());
    synchronize();
    EXPECT_TRUE(one.agrees(one.y_float(), 5)) << static_cast<int>(format);
  }
}

TEST_F(LinearGpuSmall, EveryClusterRingAndCountOfBlocksMatchesOracle) {
  LinearCase one({.outputs = 320, .inputs = 2048}, 9, 3);
  for (const int32_t cluster : {1, 2, 4, 8}) {
    for (const int32_t clusters : {1, 2, 5}) {
      for (const int32_t stages : {1, 2, 5}) {
        for (const int32_t tokens : {1, 9}) {
          one.paint();
          LinearParams params = params_of({one.task()}, tokens);
          params.tuning = {.cluster = cluster, .num_clusters = clusters, .stages = stages};
          launch_linear(params, stream());
          synchronize();
          EXPECT_TRUE(one.agrees(one.y_float(), tokens, 600))
              << "cluster " << cluster << " clusters " << clusters << " stages " << stages;
        }
      }
    }
  }
}

// Three blocks of 128 per leaf: the last stage of a leaf holds one block instead of two.
TEST_F(LinearGpuSmall, OddNumberOfBlocksPerLeaf) {
  for (const WeightFormat format : {WeightFormat::kE4m3, WeightFormat::kBf16}) {
    for (const int32_t cluster : {1, 2, 4}) {
      LinearCase one({.outputs = 64, .inputs = 128 * 3 * cluster, .format = format}, 4, 4);
      LinearParams params = params_of({one.task()}, 4);
      params.tuning.cluster = cluster;
      launch_linear(params, stream());
      synchronize();
      EXPECT_TRUE(one.agrees(one.y_float(), 4)) << static_cast<int>(format) << " " << cluster;
    }
  }
}

// One block of inputs far larger than the others: reading a neighbour's scale cannot hide.
TEST_F(LinearGpuSmall, OneHotBlockMeetsItsOwnScales) {
  for (int64_t hot = 0; hot < 8; ++hot) {
    LinearCase one({.outputs = 256, .inputs = 1024}, 3, 5);
    for (int64_t token = 0; token < 3; ++token) {
      one.x_scales()[static_cast<std::size_t>(token * 8 + hot)] =
          static_cast<uint8_t>(132 + 2 * token);
    }
    one.weight_scales()[static_cast<std::size_t>(8 + (hot + 3) % 8)] = 133;
    one.upload();
    for (const int32_t cluster : {1, 2}) {
      one.paint();
      LinearParams params = params_of({one.task()}, 3);
      params.tuning.cluster = cluster;
      launch_linear(params, stream());
      synchronize();
      EXPECT_TRUE(one.agrees(one.y_float(), 3)) << "hot block " << hot;
    }
  }
}

// Scale codes at the ends: 0x00 is 2^-127 and vanishes beside its neighbour, 0xFE meets tiny x.
TEST_F(LinearGpuSmall, ExtremeScaleCodes) {
  LinearCase one({.outputs = 128, .inputs = 256}, 2, 6);
  one.weight_scales() = {0x00, 120};
  one.upload();
  launch_linear(params_of({one.task()}, 2), stream());
  synchronize();
  EXPECT_TRUE(one.agrees(one.y_float(), 2));
  one.weight_scales() = {0xFE, 0xF0};
  one.x_scales() = {0x02, 0x10, 0x01, 0x0F};
  one.upload();
  launch_linear(params_of({one.task()}, 2), stream());
  synchronize();
  EXPECT_TRUE(one.agrees(one.y_float(), 2));
}

TEST_F(LinearGpuSmall, ZeroRowsAndLargestCodes) {
  LinearCase one({.outputs = 128, .inputs = 256}, 2, 7);
  for (std::size_t i = 0; i < 256; ++i) {
    one.x()[i] = 0;                                                 // token 0: amax = 0
    one.x()[256 + i] = i % 2 == 0 ? uint8_t{0x7E} : uint8_t{0xFE};  // +-448
  }
  one.upload();
  launch_linear(params_of({one.task()}, 2), stream());
  synchronize();
  const std::vector<float> y = one.y_float();
  EXPECT_TRUE(one.agrees(y, 2));
  for (std::size_t row = 0; row < 128; ++row) {
    EXPECT_EQ(y[row], 0.0F);
  }
}

// What lies behind the last token (here NaN codes) must not reach any output.
TEST_F(LinearGpuSmall, NanBehindTheLastTokenStaysThere) {
  for (const WeightFormat format : {WeightFormat::kE4m3, WeightFormat::kBf16}) {
    LinearCase one({.outputs = 128, .inputs = 1024, .format = format}, 16, 8);
    launch_linear(params_of({one.task()}, 3), stream());
    synchronize();
    const std::vector<float> clean = one.y_float();
    const std::size_t begin = 3 * one.x().size() / 16;
    std::fill(one.x().begin() + static_cast<int64_t>(begin), one.x().end(), uint8_t{0xFF});
    std::fill(one.x_scales().begin() + 3 * 8, one.x_scales().end(), uint8_t{0xFF});
    one.upload_x();
    launch_linear(params_of({one.task()}, 3), stream());
    synchronize();
    const std::vector<float> dirty = one.y_float();
    for (std::size_t i = 0; i < 3 * 128; ++i) {
      EXPECT_EQ(clean[i], dirty[i]) << i;
    }
  }
}

TEST_F(LinearGpuSmall, FloatScalesGiveTheBitsOfPowerOfTwoCodes) {
  LinearCase one({.outputs = 256, .inputs = 1024}, 5, 9);
  launch_linear(params_of({one.task()}, 5), stream());
  synchronize();
  const std::vector<float> by_codes = one.y_float();
  const device::Buffer<float> weight_scales = as_floats(one.weight_scales());
  const device::Buffer<float> x_scales = as_floats(one.x_scales());
  one.paint();
  LinearTask task = one.task();
  task.weight_scales = weight_scales.data();
  task.x_scales = x_scales.data();
  task.weight_scale_format = ScaleFormat::kFloat32;
  task.x_scale_format = ScaleFormat::kFloat32;
  launch_linear(params_of({task}, 5), stream());
  synchronize();
  const std::vector<float> by_floats = one.y_float();
  for (std::size_t i = 0; i < 5 * 256; ++i) {
    EXPECT_EQ(by_codes[i], by_floats[i]) << i;
  }
}

TEST_F(LinearGpuSmall, Bf16OutputIsTheRoundedFloatOutput) {
  LinearCase one({.outputs = 192, .inputs = 512}, 10, 10);
  for (const int32_t cluster : {1, 4}) {
    LinearParams params = params_of({one.task()}, 10);
    params.tuning.cluster = cluster;
    launch_linear(params, stream());
    synchronize();
    const std::vector<float> exact = one.y_float();
    one.paint();
    params.tasks[0] = one.task(LinearOutput::kBf16);
    launch_linear(params, stream());
    synchronize();
    const std::vector<uint16_t> rounded = one.y_bf16();
    for (std::size_t i = 0; i < 10 * 192; ++i) {
      EXPECT_EQ(rounded[i], numerics::bf16_from_float(exact[i])) << i;
    }
  }
}

TEST_F(LinearGpuSmall, TasksOfBothFormatsShareALaunch) {
  LinearCase first({.outputs = 192, .inputs = 1024}, 11, 11);
  LinearCase second({.outputs = 128, .inputs = 1024, .format = WeightFormat::kBf16}, 11, 12);
  LinearCase third({.outputs = 64, .inputs = 512}, 11, 13);
  for (const int32_t cluster : {0, 1, 2, 4}) {
    for (const int32_t clusters : {0, 3}) {
      for (const int32_t tokens : {1, 11}) {
        first.paint();
        second.paint();
        third.paint();
        LinearParams params = params_of({first.task(), second.task(), third.task()}, tokens);
        params.tuning = {.cluster = cluster, .num_clusters = clusters};
        launch_linear(params, stream());
        synchronize();
        EXPECT_TRUE(first.agrees(first.y_float(), tokens)) << cluster << " " << clusters;
        EXPECT_TRUE(second.agrees(second.y_float(), tokens)) << cluster << " " << clusters;
        EXPECT_TRUE(third.agrees(third.y_float(), tokens)) << cluster << " " << clusters;
      }
    }
  }
}

TEST_F(LinearGpuSmall, NoTokensOrNoTasksLaunchNothing) {
  LinearCase one({.outputs = 64, .inputs = 256}, 1, 14);
  launch_linear(params_of({one.task()}, 0), stream());
  launch_linear(params_of({}, 4), stream());
  launch_linear_portable(params_of({one.task()}, 0), stream());
  synchronize();
  EXPECT_TRUE(std::isnan(one.y_float()[0]));
}

TEST_F(LinearGpu, MatchesOracleOnShapesOfTheModel) {
  struct Shape {
    int32_t outputs;
    int32_t inputs;
    WeightFormat format;
  };
  for (const Shape shape : {Shape{1536, 4096, WeightFormat::kE4m3},
                            Shape{8192, 1024, WeightFormat::kE4m3},
                            Shape{4096, 2048, WeightFormat::kE4m3},
                            Shape{2624, 4096, WeightFormat::kBf16},
                            Shape{1792, 7168, WeightFormat::kE4m3}}) {
    LinearCase one(
        {.outputs = shape.outputs, .inputs = shape.inputs, .format = shape.format}, 64, 15);
    for (const int32_t tokens : {1, 4, 16, 64}) {
      one.paint();
      launch_linear(params_of({one.task()}, tokens), stream());
      synchronize();
      const ::testing::AssertionResult result = one.agrees(one.y_float(), tokens, 1000);
      EXPECT_TRUE(result) << shape.outputs << "x" << shape.inputs << " M " << tokens;
      RecordProperty(std::to_string(shape.outputs) + "x" + std::to_string(shape.inputs) + "_m" +
                         std::to_string(tokens),
                     result.message());
    }
  }
}

// The last rows of the prefill list: many token tiles and a partial one.
TEST_F(LinearGpu, ManyTokenTiles) {
  LinearCase one({.outputs = 128, .inputs = 512}, 4095, 16);
  for (const int32_t tokens : {127, 128, 129, 300, 4095}) {
    one.paint();
    launch_linear(params_of({one.task()}, tokens), stream());
    synchronize();
    const std::vector<float> y = one.y_float();
    EXPECT_TRUE(one.agrees(y, tokens, 4000)) << tokens;
    EXPECT_TRUE(std::isnan(y[static_cast<std::size_t>(tokens * one.rows())]));
  }
}

}  // namespace
}  // namespace baleen::kernels
