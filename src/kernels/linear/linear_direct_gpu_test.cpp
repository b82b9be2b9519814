// The direct form of small FP8 linears: against the oracle and, bit for bit, against the ring form
// (which any override of the planner asks for), over forms, token counts and leaves.
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "device/buffer.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_case_test.h"
#include "kernels/linear/linear_direct_plan.h"
#include "kernels/testing/gpu_test.h"
#include "numerics/bfloat16.h"
#include "numerics/float8.h"

namespace baleen::kernels {
namespace {

using testing::as_floats;
using testing::LinearCase;
using testing::params_of;
using LinearDirectGpuSmall = testing::GpuTest;
using LinearDirectGpu = testing::GpuTest;

bool is_direct(const LinearParams& params) {
  return plan_direct(params, plan_linear(params, 1)).warp_groups > 0;
}

LinearParams by_ring(LinearParams params) {
  params.tuning.split = 0;
  params.tuning.stages = 2;
  return params;
}

/// Bit patterns of the first `count` results that differ.
int64_t different_bits(const std::vector<float>& a, const std::vector<float>& b, int64_t count) {
  int64_t different = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    different += numerics::float_bits(a[i]) != numerics::float_bits(b[i]) ? 1 : 0;
  }
  return different;
}

/// Runs `params` in the direct form and by the ring: near the oracle, equal bits, nothing written
/// past the last token.
::testing::AssertionResult forms_agree(LinearCase& one,
                                       LinearParams params,
                                       cudaStream_t stream,
                                       int64_t samples) {
  if (!is_direct(params)) {
    return ::testing::AssertionFailure() << "not the direct form";
  }
  one.paint();
  launch_linear(params, stream);
  BALEEN_CUDA_CHECK(cudaStreamSynchronize(stream));
  const std::vector<float> y = one.y_float();
  const ::testing::AssertionResult near = one.agrees(y, params.num_tokens, samples);
  if (!near) {
    return near;
  }
  const int64_t count = params.num_tokens * one.rows();
  if (!std::isnan(y[static_cast<std::size_t>(count)])) {
    return ::testing::AssertionFailure() << "wrote past the last token";
  }
  one.paint();
  launch_linear(by_ring(params), stream);
  BALEEN_CUDA_CHECK(cudaStreamSynchronize(stream));
  const int64_t different = different_bits(y, one.y_float(), count);
  return different == 0
             ? ::testing::AssertionSuccess()
             : ::testing::AssertionFailure() << different << " results differ from the ring's";
}

/// Token counts of the forms in which a block owns 64 / split rows.
constexpr int32_t most_direct_tokens(int32_t split) {
  return split >= 4 ? 2 : 16;
}
constexpr int32_t least_direct_tokens(int32_t split) {
  return split == 1 ? 5 : 1;
}

constexpr std::array<int32_t, 8> kDirectTokenCounts = {1, 2, 3, 4, 5, 8, 9, 16};

// Every split and number of warp groups that a block can have.
TEST_F(LinearDirectGpuSmall, EveryFormMatchesOracleAndRingAtEveryTokenCount) {
  struct Form {
    int32_t inputs;
    int32_t split;
  };
  for (const Form& form : {Form{256, 1},
                           Form{768, 1},
                           Form{1024, 1},
                           Form{512, 2},
                           Form{2048, 2},
                           Form{1024, 4},
                           Form{3072, 4},
                           Form{2048, 8},
                           Form{4096, 8}}) {
    LinearCase one({.outputs = 192, .inputs = form.inputs}, 16, 41);
    for (const int32_t tokens : kDirectTokenCounts) {
      LinearParams params = params_of({one.task()}, tokens);
      params.tuning.split = form.split;
      if (tokens > most_direct_tokens(form.split) || tokens < least_direct_tokens(form.split)) {
        EXPECT_FALSE(is_direct(params)) << form.split << " " << tokens;
        continue;
      }
      EXPECT_TRUE(forms_agree(one, params, stream(), 400))
          << form.inputs << " inputs, split " << form.split << " M " << tokens;
    }
  }
}

TEST_F(LinearDirectGpu, ShapesOfTheModelMatchOracleAndRing) {
  struct Shape {
    int32_t outputs;
    int32_t inputs;
  };
  for (const Shape& shape : {Shape{1536, 4096},
                             Shape{1024, 4096},
                             Shape{2048, 4096},
                             Shape{8192, 1024},
                             Shape{4096, 2048},
                             Shape{4096, 1024},
                             Shape{4096, 512},
                             Shape{4096, 4096}}) {
    LinearCase one({.outputs = shape.outputs, .inputs = shape.inputs}, 16, 42);
    for (const LinearMode mode : {LinearMode::kFast, LinearMode::kInvariant}) {
      for (const int32_t tokens : {1, 2, 4, 7, 16}) {
        const LinearParams params = params_of({one.task()}, tokens, mode);
        if (is_direct(params)) {
          EXPECT_TRUE(forms_agree(one, params, stream(), 200))
              << shape.outputs << "x" << shape.inputs << " M " << tokens;
        }
      }
    }
  }
}

// Every number of leaves a row-parallel product can have: 1 to 8, of 8 blocks of inputs.
TEST_F(LinearDirectGpuSmall, LeavesAreAddedAsByTheRing) {
  LinearCase one({.outputs = 128, .inputs = 1024}, 9, 42);
  for (const int32_t leaves : {1, 2, 4, 8}) {
    for (const int32_t tokens : {2, 9}) {
      LinearParams params =
          params_of({one.task(LinearOutput::kFloat32, leaves)}, tokens, LinearMode::kInvariant);
      params.tuning.split = tokens == 2 ? 4 : 1;
      EXPECT_TRUE(forms_agree(one, params, stream(), 400)) << leaves << " leaves M " << tokens;
    }
  }
}

// x and its scales lie apart in memory, as columns of a wider row; y too. Neighbours stay as they
// are.
TEST_F(LinearDirectGpuSmall, RowsMayBePartsOfWiderRows) {
  LinearCase wide({.outputs = 128, .inputs = 2048}, 5, 45);
  LinearCase part({.outputs = 128, .inputs = 1024}, 5, 46);
  for (std::size_t token = 0; token < 5; ++token) {
    std::copy_n(wide.x().begin() + static_cast<int64_t>(token * 2048 + 1024),
                1024,
                part.x().begin() + static_cast<int64_t>(token * 1024));
    std::copy_n(wide.x_scales().begin() + static_cast<int64_t>(token * 16 + 8),
                8,
                part.x_scales().begin() + static_cast<int64_t>(token * 8));
  }
  part.upload_x();
  LinearParams packed = params_of({part.task()}, 5);
  packed.tuning.split = 2;
  launch_linear(packed, stream());
  synchronize();
  const std::vector<float> expected = part.y_float();
  ASSERT_TRUE(part.agrees(expected, 5));
  LinearTask task = part.task();
  task.x = static_cast<const uint8_t*>(wide.task().x) + 1024;
  task.x_scales = static_cast<const uint8_t*>(wide.task().x_scales) + 8;
  task.x_stride = 2048;
  task.x_scale_stride = 16;
  device::Buffer<float> y(5 * 320);
  y.fill_bytes(0xFF);
  task.y = y.data() + 64;
  task.y_stride = 320;
  LinearParams params = params_of({task}, 5);
  params.tuning.split = 2;
  ASSERT_TRUE(is_direct(params) && is_direct(packed));
  launch_linear(params, stream());
  synchronize();
  const std::vector<float> apart = y.to_host();
  for (std::size_t token = 0; token < 5; ++token) {
    for (std::size_t row = 0; row < 128; ++row) {
      ASSERT_EQ(apart[token * 320 + 64 + row], expected[token * 128 + row]) << token << " " << row;
    }
    EXPECT_TRUE(std::isnan(apart[token * 320 + 63]));
    EXPECT_TRUE(std::isnan(apart[token * 320 + 192]));
  }
}

TEST_F(LinearDirectGpuSmall, Bf16OutputIsTheRoundedFloatOutput) {
  LinearCase eight({.outputs = 192, .inputs = 2048}, 2, 51);
  LinearCase one({.outputs = 192, .inputs = 1024}, 13, 52);
  const auto compare = [&](LinearCase& subject, LinearParams params) {
    launch_linear(params, stream());
    synchronize();
    const std::vector<float> exact = subject.y_float();
    subject.paint();
    params.tasks[0] = subject.task(LinearOutput::kBf16);
    launch_linear(params, stream());
    synchronize();
    const std::vector<uint16_t> rounded = subject.y_bf16();
    const auto count = static_cast<std::size_t>(params.num_tokens) * 192;
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(rounded[i], numerics::bf16_from_float(exact[i])) << params.tuning.split << " " << i;
    }
    EXPECT_EQ(rounded[count], 0xFFFF) << "wrote past the last token";
  };
  LinearParams few = params_of({eight.task()}, 2);
  few.tuning.split = 8;
  compare(eight, few);
  for (const auto& [split, tokens] : {std::pair{4, 2}, std::pair{2, 9}, std::pair{1, 13}}) {
    LinearParams params = params_of({one.task()}, tokens);
    params.tuning.split = split;
    ASSERT_TRUE(is_direct(params));
    compare(one, params);
  }
}

TEST_F(LinearDirectGpuSmall, FloatScalesGiveTheBitsOfPowerOfTwoCodes) {
  LinearCase one({.outputs = 256, .inputs = 2048}, 13, 53);
  const device::Buffer<float> weight_scales = as_floats(one.weight_scales());
  const device::Buffer<float> x_scales = as_floats(one.x_scales());
  for (const auto& [split, tokens] : {std::pair{8, 2}, std::pair{4, 1}, std::pair{2, 13}}) {
    LinearParams params = params_of({one.task()}, tokens);
    params.tuning.split = split;
    ASSERT_TRUE(is_direct(params));
    launch_linear(params, stream());
    synchronize();
    const std::vector<float> by_codes = one.y_float();
    one.paint();
    params.tasks[0].weight_scales = weight_scales.data();
    params.tasks[0].x_scales = x_scales.data();
    params.tasks[0].weight_scale_format = ScaleFormat::kFloat32;
    params.tasks[0].x_scale_format = ScaleFormat::kFloat32;
    launch_linear(params, stream());
    synchronize();
    EXPECT_EQ(different_bits(by_codes, one.y_float(), tokens * 256), 0) << split;
  }
}

// What lies behind the last token (here NaN codes and scales) reaches no output.
TEST_F(LinearDirectGpuSmall, NanBehindTheLastTokenStaysThere) {
  LinearCase one({.outputs = 128, .inputs = 2048}, 16, 54);
  std::fill(one.x().begin() + 3 * 2048, one.x().end(), uint8_t{0xFF});
  std::fill(one.x_scales().begin() + 3 * 16, one.x_scales().end(), uint8_t{0xFF});
  one.upload_x();
  for (const auto& [split, tokens] : {std::pair{8, 1}, std::pair{4, 2}, std::pair{2, 3}}) {
    LinearParams params = params_of({one.task()}, tokens);
    params.tuning.split = split;
    EXPECT_TRUE(forms_agree(one, params, stream(), 400)) << split;
  }
}

TEST_F(LinearDirectGpu, ThousandLaunchesGiveEqualBits) {
  LinearCase one({.outputs = 4096, .inputs = 2048}, 16, 47);
  for (const int32_t tokens : {1, 16}) {
    ASSERT_TRUE(is_direct(params_of({one.task()}, tokens)));
    launch_linear(params_of({one.task()}, tokens), stream());
    synchronize();
    const std::vector<float> expected = one.y_float();
    for (int round = 0; round < 20; ++round) {
      one.paint();
      for (int repeat = 0; repeat < 50; ++repeat) {
        launch_linear(params_of({one.task()}, tokens), stream());
      }
      synchronize();
      ASSERT_EQ(different_bits(expected, one.y_float(), tokens * 4096), 0) << round;
    }
  }
}

}  // namespace
}  // namespace baleen::kernels
