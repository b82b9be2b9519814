// The form for many tokens gives the bits of the form for few, over shapes, leaves and the edges of
// its tiles; that one is held against the oracle, and so is this.
#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "device/buffer.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_case_test.h"
#include "kernels/linear_prompt/linear_prompt.h"
#include "kernels/testing/gpu_test.h"
#include "numerics/bfloat16.h"

namespace baleen::kernels {
namespace {

using testing::LinearCase;
using testing::params_of;

std::vector<uint16_t> of_rows(const LinearCase& one, int32_t tokens) {
  std::vector<uint16_t> y = one.y_bf16();
  y.resize(static_cast<std::size_t>((tokens + 1) * one.rows()));  // one row of paint
  return y;
}

class LinearPromptGpuSmall : public testing::GpuTest {
 protected:
  /// Tasks of one launch, whose cases these are, in order.
  void expect_bits_of_the_other_form(const std::vector<LinearCase*>& cases,
                                     const LinearParams& params,
                                     int repeats) {
    ASSERT_TRUE(supports_linear_prompt(params)) << "M " << params.num_tokens;
    const auto paint = [&] {
      for (LinearCase* one : cases) {
        one->paint();
      }
    };
    const auto results = [&] {
      std::vector<std::vector<uint16_t>> rows;
      for (const LinearCase* one : cases) {
        rows.push_back(of_rows(*one, params.num_tokens));
      }
      return rows;
    };
    paint();
    launch_linear(params, stream());
    synchronize();
    const std::vector<std::vector<uint16_t>> expected = results();
    for (int repeat = 0; repeat < repeats; ++repeat) {
      paint();
      launch_linear_prompt(params, stream());
      synchronize();
      const std::vector<std::vector<uint16_t>> found = results();
      for (std::size_t t = 0; t < cases.size(); ++t) {
        EXPECT_TRUE(found[t] == expected[t]) << "task " << t << ": " << cases[t]->rows() << " x "
                                             << cases[t]->inputs() << " M " << params.num_tokens;
      }
    }
  }
};
class LinearPromptGpu : public LinearPromptGpuSmall {};

// Two matrices in a launch, of one leaf and of two; the leaves of a task are said where the mode
// does not cut to fill the card.
TEST_F(LinearPromptGpuSmall, GivesTheBitsOfTheFormForFewTokensAtTheEdgesOfATile) {
  for (const int32_t leaves : {1, 2}) {
    const int32_t inputs = 512 * leaves;
    LinearCase one({.outputs = 256, .inputs = inputs}, 129, 18);
    LinearCase more({.outputs = 128, .inputs = inputs}, 129, 19);
    for (const int32_t tokens : {1, 9, 127, 128, 129}) {
      expect_bits_of_the_other_form(
          {&one, &more},
          params_of({one.task(LinearOutput::kBf16, leaves), more.task(LinearOutput::kBf16, leaves)},
                    tokens,
                    LinearMode::kInvariant),
          1);
    }
  }
}

TEST_F(LinearPromptGpu, GivesTheBitsOfTheFormForFewTokens) {
  struct Case {
    int32_t outputs;
    int32_t inputs;
    int32_t more_outputs;  // of a second matrix in the same launch; 0: none
    std::vector<int32_t> tokens;
  };
  // One leaf with and without a second matrix, two leaves, inputs that are no power of two.
  const std::vector<Case> cases = {{16384, 1024, 0, {65, 127, 128, 129, 300}},
                                   {32768, 1024, 8192, {1000, 1024}},
                                   {4096, 8192, 0, {512, 513, 1024}},
                                   {16384, 1536, 0, {191}}};
  for (const Case& shape : cases) {
    const int32_t most = shape.tokens.back();
    LinearCase one({.outputs = shape.outputs, .inputs = shape.inputs}, most, 11);
    LinearCase more(
        {.outputs = std::max(shape.more_outputs, 128), .inputs = shape.inputs}, most, 12);
    for (const int32_t tokens : shape.tokens) {
      std::vector<LinearTask> tasks = {one.task(LinearOutput::kBf16)};
      std::vector<LinearCase*> of_tasks = {&one};
      if (shape.more_outputs > 0) {
        tasks.push_back(more.task(LinearOutput::kBf16));
        of_tasks.push_back(&more);
      }
      const LinearParams params = params_of(tasks, tokens);
      ASSERT_TRUE(linear_prompt_serves(params)) << shape.outputs << " M " << tokens;
      expect_bits_of_the_other_form(of_tasks, params, 3);
    }
  }
}

TEST_F(LinearPromptGpu, MatchesOracle) {
  const int32_t tokens = 130;
  LinearCase one({.outputs = 8192, .inputs = 1024}, tokens, 13);
  launch_linear_prompt(params_of({one.task(LinearOutput::kBf16)}, tokens), stream());
  synchronize();
  const std::vector<uint16_t> y = one.y_bf16();
  for (int64_t at = 0; at < tokens * one.rows(); at += 4099) {
    const LinearCase::Reference expected = one.reference(at / one.rows(), at % one.rows());
    const double actual =
        static_cast<double>(numerics::bf16_to_float(y[static_cast<std::size_t>(at)]));
    // The tensor cores' error (linear_case_test.h), and half a step of bf16.
    EXPECT_NEAR(actual, expected.sum, 2e-3 * expected.magnitude + std::abs(expected.sum) / 256.0)
        << at;
  }
}

// NaN in one token, or in an output's weights, stays where it is.
TEST_F(LinearPromptGpu, OneTokensNaNStaysInItsRow) {
  const int32_t tokens = 129;
  LinearCase one({.outputs = 8192, .inputs = 1024}, tokens, 14);
  one.x()[static_cast<std::size_t>(77 * one.inputs() + 5)] = 0x7F;
  one.upload_x();
  launch_linear_prompt(params_of({one.task(LinearOutput::kBf16)}, tokens), stream());
  synchronize();
  const std::vector<uint16_t> y = one.y_bf16();
  for (int64_t at = 0; at < tokens * one.rows(); ++at) {
    const float value = numerics::bf16_to_float(y[static_cast<std::size_t>(at)]);
    ASSERT_EQ(std::isnan(value), at / one.rows() == 77) << at;
  }
}

TEST_F(LinearPromptGpu, SaysWhatItDoesNotServe) {
  LinearCase one({.outputs = 16384, .inputs = 1024}, 200, 15);
  LinearCase narrow({.outputs = 1024, .inputs = 4096}, 200, 16);
  LinearCase plain({.outputs = 128, .inputs = 512, .format = WeightFormat::kBf16}, 200, 17);
  const LinearTask task = one.task(LinearOutput::kBf16);
  EXPECT_TRUE(linear_prompt_serves(params_of({task}, 65)));
  EXPECT_FALSE(linear_prompt_serves(params_of({task}, 64)));
  EXPECT_TRUE(supports_linear_prompt(params_of({task}, 64)));
  EXPECT_FALSE(supports_linear_prompt(params_of({task}, 0)));
  EXPECT_FALSE(linear_prompt_serves(params_of({one.task(LinearOutput::kFloat32)}, 200)));
  EXPECT_FALSE(linear_prompt_serves(params_of({narrow.task(LinearOutput::kBf16)}, 200)));
  EXPECT_FALSE(linear_prompt_serves(params_of({task, plain.task(LinearOutput::kBf16)}, 200)));
  EXPECT_FALSE(linear_prompt_serves(params_of({}, 200)));
}

}  // namespace
}  // namespace baleen::kernels
