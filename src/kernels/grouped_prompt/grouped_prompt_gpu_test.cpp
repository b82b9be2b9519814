// The form for many tokens gives the codes and scales of the form for few, which is held against
// the oracle.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/grouped_projection/grouped_case_test.h"
#include "kernels/grouped_prompt/grouped_prompt.h"
#include "kernels/testing/gpu_test.h"

namespace baleen::kernels {
namespace {

using testing::grouped_params_of;
using testing::LinearCase;
using testing::LinearCaseShape;

struct PromptResult {
  std::vector<uint8_t> codes;   // and one row of paint
  std::vector<uint8_t> scales;  // likewise
};

PromptResult prompt_result_of(const LinearCase& one, int32_t tokens) {
  PromptResult result{one.y_bytes(), one.y_scales()};
  result.codes.resize(static_cast<std::size_t>((tokens + 1) * one.rows()));
  result.scales.resize(static_cast<std::size_t>((tokens + 1) * one.rows() / 128));
  return result;
}

class GroupedPromptGpuSmall : public testing::GpuTest {
 protected:
  void expect_bits_of_the_other_form(LinearCase& one,
                                     const GroupedProjectionParams& params,
                                     int repeats) {
    const std::string what =
        std::to_string(params.groups) + " x " + std::to_string(params.outputs) + " x " +
        std::to_string(params.inputs) + " M " + std::to_string(params.num_tokens);
    ASSERT_TRUE(supports_grouped_prompt(params)) << what;
    one.paint();
    launch_grouped_projection(params, stream());
    synchronize();
    const PromptResult expected = prompt_result_of(one, params.num_tokens);
    for (int repeat = 0; repeat < repeats; ++repeat) {
      one.paint();
      launch_grouped_prompt(params, stream());
      synchronize();
      const PromptResult found = prompt_result_of(one, params.num_tokens);
      EXPECT_TRUE(found.codes == expected.codes) << what;
      EXPECT_TRUE(found.scales == expected.scales) << what;
    }
  }
};
class GroupedPromptGpu : public GroupedPromptGpuSmall {};

TEST_F(GroupedPromptGpuSmall, GivesTheBitsOfTheFormForFewTokensAtTheEdgesOfATile) {
  // One leaf of an odd number of blocks, of fewer blocks than the ring has stages, and two leaves.
  for (const int32_t inputs : {384, 128, 1024}) {
    const LinearCaseShape shape{
        .outputs = 128, .inputs = inputs, .groups = 2, .format = WeightFormat::kE4m3AsBf16};
    LinearCase one(shape, 129, 53);
    for (const int32_t tokens : {1, 7, 127, 128, 129}) {
      GroupedProjectionParams params = grouped_params_of(one, shape, tokens, LinearOutput::kE4m3);
      params.mode = LinearMode::kInvariant;  // whose leaves do not grow to fill the card
      expect_bits_of_the_other_form(one, params, 1);
    }
  }
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
      const GroupedProjectionParams params =
          grouped_params_of(one, shape, tokens, LinearOutput::kE4m3);
      ASSERT_TRUE(grouped_prompt_serves(params)) << one_case.groups << " M " << tokens;
      expect_bits_of_the_other_form(one, params, 3);
    }
  }
}

TEST_F(GroupedPromptGpu, SaysWhatItDoesNotServe) {
  const LinearCaseShape shape{
      .outputs = 1024, .inputs = 512, .groups = 16, .format = WeightFormat::kE4m3AsBf16};
  LinearCase one(shape, 65, 52);
  const GroupedProjectionParams served = grouped_params_of(one, shape, 65, LinearOutput::kE4m3);
  EXPECT_TRUE(grouped_prompt_serves(served));
  GroupedProjectionParams params = served;
  params.output = LinearOutput::kBf16;
  EXPECT_FALSE(grouped_prompt_serves(params));
  EXPECT_FALSE(supports_grouped_prompt(params));
  params = served;
  params.num_tokens = 64;
  EXPECT_FALSE(grouped_prompt_serves(params));
  EXPECT_TRUE(supports_grouped_prompt(params));
  params = served;
  params.groups = 8;  // 64 tiles
  EXPECT_FALSE(grouped_prompt_serves(params));
  params = served;
  params.stored = WeightFormat::kBf16;
  EXPECT_FALSE(supports_grouped_prompt(params));
  params = served;
  params.outputs = 128;  // few outputs in the mode that fills the card: four leaves
  EXPECT_FALSE(supports_grouped_prompt(params));
}

}  // namespace
}  // namespace baleen::kernels
