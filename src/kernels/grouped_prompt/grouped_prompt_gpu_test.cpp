// The form for many tokens gives the codes and scales of the form for few, which is held against
// the oracle.
#include <vector>

#include <gtest/gtest.h>

#include "kernels/grouped_prompt/grouped_prompt.h"
#include "kernels/linear/linear_case_test.h"
#include "kernels/testing/gpu_test.h"

namespace baleen::kernels {
namespace {

using testing::LinearCase;
using testing::LinearCaseShape;
using GroupedPromptGpu = testing::GpuTest;

GroupedProjectionParams prompt_params_of(LinearCase& one,
                                         const LinearCaseShape& shape,
                                         int32_t tokens) {
  const LinearTask task = one.task();
  return {.weight = task.weight,
          .weight_scales = task.weight_scales,
          .x = static_cast<const uint16_t*>(task.x),
          .y = task.y,
          .y_scales = task.y_scales,
          .num_tokens = tokens,
          .groups = shape.groups,
          .outputs = shape.outputs,
          .inputs = shape.inputs,
          .stored = shape.format,
          .output = LinearOutput::kE4m3};
}

struct PromptResult {
  std::vector<uint8_t> codes;   // and one row of paint
  std::vector<uint8_t> scales;  // likewise
  friend bool operator==(const PromptResult&, const PromptResult&) = default;
};

PromptResult prompt_result_of(const LinearCase& one, int32_t tokens) {
  PromptResult result{one.y_bytes(), one.y_scales()};
  result.codes.resize(static_cast<std::size_t>((tokens + 1) * one.rows()));
  result.scales.resize(static_cast<std::size_t>((tokens + 1) * one.rows() / 128));
  return result;
}

TEST_F(GroupedPromptGpu, GivesTheBitsOfTheFormForFewTokens) {
  struct Case {
    int32_t groups;
    int32_t outputs;
    int32_t inputs;
    std::vector<int32_t> tokens;
  };
  // Flash's (two leaves), one leaf, an odd number of blocks of inputs.
  const std::vector<Case> cases = {{8, 1024, 4096, {200, 256, 1000, 1024}},
                                   {16, 1024, 512, {65, 127, 128, 129, 300}},
                                   {15, 1024, 384, {257}}};
  for (const Case& one_case : cases) {
    const LinearCaseShape shape{.outputs = one_case.outputs,
                                .inputs = one_case.inputs,
                                .groups = one_case.groups,
                                .format = WeightFormat::kE4m3AsBf16};
    LinearCase one(shape, one_case.tokens.back(), 51);
    for (const int32_t tokens : one_case.tokens) {
      const GroupedProjectionParams params = prompt_params_of(one, shape, tokens);
      ASSERT_TRUE(grouped_prompt_serves(params)) << one_case.groups << " M " << tokens;
      one.paint();
      launch_grouped_projection(params, stream());
      synchronize();
      const PromptResult expected = prompt_result_of(one, tokens);
      for (int repeat = 0; repeat < 3; ++repeat) {
        one.paint();
        launch_grouped_prompt(params, stream());
        synchronize();
        const PromptResult found = prompt_result_of(one, tokens);
        EXPECT_TRUE(found.codes == expected.codes) << one_case.groups << " M " << tokens;
        EXPECT_TRUE(found.scales == expected.scales) << one_case.groups << " M " << tokens;
      }
    }
  }
}

TEST_F(GroupedPromptGpu, SaysWhatItDoesNotServe) {
  const LinearCaseShape shape{
      .outputs = 1024, .inputs = 512, .groups = 16, .format = WeightFormat::kE4m3AsBf16};
  LinearCase one(shape, 65, 52);
  GroupedProjectionParams params = prompt_params_of(one, shape, 65);
  EXPECT_TRUE(grouped_prompt_serves(params));
  params.output = LinearOutput::kBf16;
  EXPECT_FALSE(grouped_prompt_serves(params));
  params = prompt_params_of(one, shape, 64);
  EXPECT_FALSE(grouped_prompt_serves(params));
  params = prompt_params_of(one, shape, 65);
  params.groups = 8;  // 64 tiles
  EXPECT_FALSE(grouped_prompt_serves(params));
  params.groups = 16;
  params.stored = WeightFormat::kBf16;
  EXPECT_FALSE(grouped_prompt_serves(params));
}

}  // namespace
}  // namespace baleen::kernels
