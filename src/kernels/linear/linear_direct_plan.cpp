#include "kernels/linear/linear_direct_plan.h"

#include <array>

namespace baleen::kernels {
namespace {

constexpr int32_t kMostDirectTokens = 16;
constexpr int32_t kMostDirectTiles = 1024;  // 8.4 MB
constexpr int32_t kEnoughDirectBlocks = 96;
constexpr int64_t kMostDirectStride = 1 << 27;  // 16 rows stay below 2^32 bytes

bool fits_direct(const LinearParams& params) {
  const LinearTuning& tuning = params.tuning;
  const bool ring =
      tuning.split == 0 && (tuning.cluster != 0 || tuning.num_clusters != 0 || tuning.stages != 0);
  if (ring || params.programmatic || params.num_tasks != 1 || params.num_tokens < 1 ||
      params.num_tokens > kMostDirectTokens) {
    return false;
  }
  const LinearTask& task = params.tasks[0];
  return task.format == WeightFormat::kE4m3 && task.groups == 1 &&
         task.x_stride <= kMostDirectStride && task.x_scale_stride <= kMostDirectStride &&
         task.y_stride <= kMostDirectStride &&
         // Four rows are stored at once.
         task.y_stride % 4 == 0 && reinterpret_cast<uintptr_t>(task.y) % 16 == 0;
}

int32_t direct_token_tile(int32_t tokens) {
  return tokens <= 2 ? 2 : tokens <= 4 ? 4 : tokens <= 8 ? 8 : 16;
}

/// True when there is a kernel for this token tile whose blocks own 64 / split rows. The narrower
/// a block's rows, the more of them fill the card, and the more often x is read.
bool has_direct_kernel(int32_t token_tile, int32_t split) {
  switch (split) {
    case 8:
    case 4:
      return token_tile == 2;
    case 2:
      return true;
    default:
      return token_tile >= 8;
  }
}

}  // namespace

DirectPlan plan_direct(const LinearParams& params, const LinearPlan& plan) {
  if (!plan.valid || !fits_direct(params)) {
    return {};
  }
  const int32_t row_blocks = plan.num_items;
  const int32_t blocks = params.tasks[0].num_inputs / 128;
  const int32_t wanted = params.tuning.split;
  if (row_blocks * blocks > kMostDirectTiles) {
    return {};
  }
  const int32_t tile = direct_token_tile(params.num_tokens);
  const std::array<int32_t, 4> splits = tile < 8 ? std::array{8, 4, 2, 1} : std::array{1, 2, 4, 8};
  for (const int32_t split : splits) {
    const DirectPlan now{.warp_groups = blocks / (split * kDirectSets),
                         .token_tile = tile,
                         .split = split,
                         .blocks = row_blocks * split};
    const bool divides = now.warp_groups * split * kDirectSets == blocks;
    const bool asked = wanted == 0 ? now.blocks >= kEnoughDirectBlocks : wanted == split;
    if (asked && divides && now.warp_groups >= 1 && now.warp_groups <= kMostDirectGroups &&
        has_direct_kernel(now.token_tile, split)) {
      return now;
    }
  }
  return {};
}

}  // namespace baleen::kernels
