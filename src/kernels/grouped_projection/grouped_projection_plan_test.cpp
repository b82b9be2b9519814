// Both forms of the grouped projection cut a sum alike, whatever the number of tokens: the leaves
// decide the bits.
#include "kernels/grouped_projection/grouped_projection_plan.h"

#include <gtest/gtest.h>

namespace baleen::kernels {
namespace {

GroupedProjectionParams grouped_shape(int32_t groups, int32_t outputs, int32_t inputs) {
  return {.num_tokens = 1,
          .groups = groups,
          .outputs = outputs,
          .inputs = inputs,
          .output = LinearOutput::kE4m3};
}

TEST(GroupedProjectionPlanTest, FewAndManyTokensCutTheSumsAlike) {
  int32_t several_leaves = 0;
  // Groups of Flash and Pro and of their shards, and shapes of the GPU tests.
  for (const int32_t groups : {1, 2, 4, 8, 15, 16}) {
    for (const int32_t outputs : {128, 256, 1024}) {
      for (const int32_t inputs : {128, 384, 512, 1024, 4096}) {
        for (const WeightFormat stored : {WeightFormat::kE4m3AsBf16, WeightFormat::kBf16}) {
          for (const LinearMode mode : {LinearMode::kFast, LinearMode::kInvariant}) {
            GroupedProjectionParams params = grouped_shape(groups, outputs, inputs);
            params.stored = stored;
            params.mode = mode;
            const LinearTaskPlan cut = grouped_cut(params);
            several_leaves += cut.leaves > 1 ? 1 : 0;
            for (const int32_t tokens : {1, 8, 9, 16, 17, 32, 33, 64, 65, 128, 512, 1000, 1024}) {
              params.num_tokens = tokens;
              const LinearPlan launched = plan_linear(grouped_linear(params), kGroupedRowTiles);
              ASSERT_EQ(launched.valid, cut.leaves > 0);
              const LinearTaskPlan& task = launched.tasks[0];
              EXPECT_EQ(task.leaves, cut.leaves)
                  << groups << " x " << outputs << " x " << inputs << " M " << tokens;
              EXPECT_EQ(task.tiles_per_leaf, cut.tiles_per_leaf) << tokens;
              EXPECT_EQ(task.tiles_per_row, cut.tiles_per_row) << tokens;
              EXPECT_EQ(grouped_cut(params).leaves, cut.leaves) << tokens;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(several_leaves, 0);
}

TEST(GroupedProjectionPlanTest, FlashHasTwoLeaves) {
  const LinearTaskPlan cut = grouped_cut(grouped_shape(8, 1024, 4096));
  EXPECT_EQ(cut.leaves, 2);
  EXPECT_EQ(cut.tiles_per_row, 32);  // of 128 inputs
  EXPECT_EQ(cut.tiles_per_leaf, 16);
}

TEST(GroupedProjectionPlanTest, WhatFitsNoLaunchHasNoLeaves) {
  EXPECT_EQ(grouped_cut(grouped_shape(8, 1024, 100)).leaves, 0);
  EXPECT_EQ(grouped_cut(grouped_shape(8, 64, 4096)).leaves, 0);
  EXPECT_EQ(grouped_cut(grouped_shape(0, 1024, 4096)).leaves, 0);
}

}  // namespace
}  // namespace baleen::kernels
