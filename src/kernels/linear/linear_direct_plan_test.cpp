#include "kernels/linear/linear_direct_plan.h"

#include <gtest/gtest.h>

namespace baleen::kernels {
namespace {

LinearParams fp8_task(int32_t outputs, int32_t inputs, int32_t tokens) {
  LinearParams params;
  params.tasks[0].num_outputs = outputs;
  params.tasks[0].num_inputs = inputs;
  params.tasks[0].x_stride = inputs;
  params.num_tasks = 1;
  params.num_tokens = tokens;
  return params;
}

DirectPlan direct_plan(const LinearParams& params) {
  return plan_direct(params, plan_linear(params, 1));
}

TEST(LinearDirectPlanTest, FormsOfTheModelsShapes) {
  struct Expected {
    int32_t outputs;
    int32_t inputs;
    int32_t tokens;
    int32_t split;
    int32_t warp_groups;
    int32_t blocks;
  };
  for (const Expected& expected : {Expected{1536, 4096, 1, 8, 2, 192},
                                   Expected{2048, 4096, 2, 8, 2, 256},
                                   Expected{1024, 4096, 1, 8, 2, 128},
                                   Expected{8192, 1024, 2, 4, 1, 512},
                                   Expected{4096, 2048, 1, 8, 1, 512},
                                   Expected{4096, 512, 1, 2, 1, 128},
                                   Expected{4096, 2048, 4, 2, 4, 128},
                                   Expected{4096, 1024, 7, 2, 2, 128},
                                   Expected{4096, 512, 16, 2, 1, 128},
                                   Expected{8192, 1024, 16, 1, 4, 128}}) {
    const DirectPlan plan =
        direct_plan(fp8_task(expected.outputs, expected.inputs, expected.tokens));
    EXPECT_EQ(plan.split, expected.split) << expected.outputs << "x" << expected.inputs;
    EXPECT_EQ(plan.warp_groups, expected.warp_groups) << expected.outputs << "x" << expected.inputs;
    EXPECT_EQ(plan.blocks, expected.blocks) << expected.outputs << "x" << expected.inputs;
  }
}

TEST(LinearDirectPlanTest, OthersGoThroughTheRing) {
  EXPECT_EQ(direct_plan(fp8_task(1536, 4096, 0)).warp_groups, 0);
  EXPECT_EQ(direct_plan(fp8_task(1536, 4096, 17)).warp_groups, 0);
  EXPECT_EQ(direct_plan(fp8_task(1536, 4096, 3)).warp_groups, 0);  // too few blocks of 32 rows
  EXPECT_EQ(direct_plan(fp8_task(8256, 1024, 1)).warp_groups, 0);  // more than 8.4 MB
  EXPECT_EQ(direct_plan(fp8_task(64, 128, 1)).warp_groups, 0);     // one block of inputs
  EXPECT_EQ(direct_plan(fp8_task(64, 384, 1)).warp_groups, 0);     // three of them
  LinearParams overridden = fp8_task(1536, 4096, 1);
  overridden.tuning.stages = 2;
  EXPECT_EQ(direct_plan(overridden).warp_groups, 0);
  LinearParams two = fp8_task(1536, 4096, 1);
  two.tasks[1] = two.tasks[0];
  two.num_tasks = 2;
  EXPECT_EQ(direct_plan(two).warp_groups, 0);
  LinearParams ahead = fp8_task(1536, 4096, 1);
  ahead.programmatic = true;
  EXPECT_EQ(direct_plan(ahead).warp_groups, 0);
  LinearParams crooked = fp8_task(1536, 4096, 1);  // four rows are stored at once
  crooked.tasks[0].y_stride = 1538;
  EXPECT_EQ(direct_plan(crooked).warp_groups, 0);
  LinearParams bf16 = fp8_task(1536, 4096, 1);
  bf16.tasks[0].format = WeightFormat::kBf16;
  EXPECT_EQ(direct_plan(bf16).warp_groups, 0);
}

}  // namespace
}  // namespace baleen::kernels
