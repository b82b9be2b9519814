#include "kernels/linear/linear_plan.h"

#include <gtest/gtest.h>

namespace baleen::kernels {
namespace {

LinearParams one_task(int32_t outputs,
                      int32_t inputs,
                      int32_t tokens,
                      LinearMode mode = LinearMode::kFast) {
  LinearParams params;
  params.tasks[0].num_outputs = outputs;
  params.tasks[0].num_inputs = inputs;
  params.tasks[0].x_stride = inputs;
  params.num_tasks = 1;
  params.num_tokens = tokens;
  params.mode = mode;
  return params;
}

TEST(LinearPlanTest, LeavesFollowTheUnshardedShape) {
  EXPECT_EQ(invariant_leaves(1536, 4096, false), 8);
  EXPECT_EQ(invariant_leaves(2048, 4096, false), 4);
  EXPECT_EQ(invariant_leaves(4096, 4096, false), 2);
  EXPECT_EQ(invariant_leaves(8192, 1024, false), 1);
  EXPECT_EQ(invariant_leaves(256, 4096, false), 8);  // 512 inputs is the least
  EXPECT_EQ(invariant_leaves(256, 1024, false), 2);
  EXPECT_EQ(invariant_leaves(129280, 4096, false), 1);
  EXPECT_EQ(invariant_leaves(4096, 8192, true), 8);
  EXPECT_EQ(invariant_leaves(4096, 2048, true), 8);
  EXPECT_EQ(invariant_leaves(4096, 512, true), 4);  // no more leaves than blocks of 128
  EXPECT_EQ(invariant_leaves(7168, 3072, true), 8);
}

TEST(LinearPlanTest, ClusterFillsTheCard) {
  EXPECT_EQ(plan_linear(one_task(8192, 1024, 1), 1).cluster, 1);
  EXPECT_EQ(plan_linear(one_task(4096, 2048, 1), 1).cluster, 2);
  EXPECT_EQ(plan_linear(one_task(2048, 4096, 1), 1).cluster, 8);
  EXPECT_EQ(plan_linear(one_task(1536, 4096, 1), 1).cluster, 8);
  // Half the card is enough when a block's weights are in flight at once.
  EXPECT_EQ(plan_linear(one_task(4096, 1024, 1), 1).cluster, 2);
  EXPECT_EQ(plan_linear(one_task(4096, 512, 1), 1).cluster, 1);
}

TEST(LinearPlanTest, CutDoesNotDependOnTokens) {
  for (const LinearMode mode : {LinearMode::kFast, LinearMode::kInvariant}) {
    const LinearPlan few = plan_linear(one_task(1536, 4096, 1, mode), 1);
    for (const int32_t tokens : {2, 9, 16, 33, 64, 65, 4095}) {
      const LinearPlan many = plan_linear(one_task(1536, 4096, tokens, mode), 1);
      ASSERT_TRUE(many.valid);
      EXPECT_EQ(many.cluster, few.cluster) << tokens;
      EXPECT_EQ(many.tasks[0].leaves, few.tasks[0].leaves) << tokens;
      EXPECT_LE(many.shared_bytes, 227 * 1024) << tokens;
    }
  }
}

TEST(LinearPlanTest, TwoBlocksWithoutClusterFitAMultiprocessor) {
  for (const int32_t tokens : {1, 8, 16, 64}) {
    EXPECT_LE(plan_linear(one_task(32768, 1024, tokens), 1).shared_bytes, 113 * 1024) << tokens;
  }
}

TEST(LinearPlanTest, EvenShareOfRowBlocks) {
  const LinearPlan plan = plan_linear(one_task(32768, 1024, 1), 1);
  EXPECT_EQ(plan.num_items, 512);
  EXPECT_EQ(plan.num_clusters, 256);
}

TEST(LinearPlanTest, RefusesWhatDoesNotFit) {
  EXPECT_FALSE(supports_linear(one_task(100, 4096, 1)));
  EXPECT_FALSE(supports_linear(one_task(128, 100, 1)));
  EXPECT_FALSE(supports_linear(one_task(128, 4096, -1)));
  LinearParams params = one_task(128, 4096, 1);
  params.tasks[0].x_stride = 4100;
  EXPECT_FALSE(supports_linear(params));
  params = one_task(128, 4096, 1);
  params.tasks[0].output = LinearOutput::kE4m3;
  EXPECT_FALSE(supports_linear(params));
  params = one_task(128, 4096, 1);
  params.num_tasks = kMaxLinearTasks + 1;
  EXPECT_FALSE(supports_linear(params));
  // Leaves of one and of eight cannot share a launch: a block adds at most two.
  params = one_task(8192, 4096, 1, LinearMode::kInvariant);
  params.num_tasks = 2;
  params.tasks[1] = params.tasks[0];
  params.tasks[1].num_outputs = 256;
  EXPECT_FALSE(supports_linear(params));
  EXPECT_TRUE(supports_linear(one_task(128, 4096, 0)));
}

}  // namespace
}  // namespace baleen::kernels
