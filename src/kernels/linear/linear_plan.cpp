#include "kernels/linear/linear_plan.h"

#include <algorithm>

namespace baleen::kernels {
namespace {

constexpr int32_t kFullCard = 120;     // blocks that count as filling the card
constexpr int32_t kTilesInFlight = 4;  // 32 KiB
constexpr int32_t kMostBlocks = 256;   // two per multiprocessor
constexpr int32_t kMultiprocessors = 132;
constexpr int32_t kThirdShared = 75 * 1024;
constexpr int32_t kHalfShared = 112 * 1024;
constexpr int32_t kMostShared = 226 * 1024;
constexpr int32_t kMostResidentX = 128 * 1024;
constexpr int32_t kStreamedTile = 32;
constexpr int32_t kMaxScaleBlocks = 128;  // one per consumer thread

bool fits(const LinearTask& task, int32_t row_tiles) {
  const bool formats = row_tiles == 2 ? task.format != WeightFormat::kE4m3
                                      : task.format != WeightFormat::kE4m3AsBf16 &&
                                            task.output != LinearOutput::kE4m3;
  const bool whole_scales = task.groups == 1 || task.num_outputs % 128 == 0;
  return formats && whole_scales && task.num_outputs > 0 &&
         task.num_outputs % (64 * row_tiles) == 0 && task.num_inputs > 0 &&
         task.num_inputs % 128 == 0 && task.groups > 0 &&
         (task.x_stride * (task.format == WeightFormat::kE4m3 ? 1 : 2)) % 16 == 0;
}

/// Leaves of `task` when `cluster` blocks share each sum; 0 when the two do not go together.
int32_t leaves_with(const LinearParams& params, const LinearTask& task, int32_t cluster) {
  const int32_t leaves =
      params.mode == LinearMode::kFast
          ? cluster
          : (task.leaves > 0 ? task.leaves
                             : invariant_leaves(task.num_outputs, task.num_inputs, false));
  // A block adds at most two leaves in registers.
  const bool together =
      leaves % cluster == 0 && leaves / cluster <= 2 && task.num_inputs % (leaves * 128) == 0;
  return together ? leaves : 0;
}

/// Items go to clusters round robin, so the heaviest cluster decides; the largest count among
/// equals keeps most multiprocessors busy.
int32_t balanced_clusters(const LinearParams& params, const LinearPlan& plan) {
  const int32_t most = std::max(1, kMostBlocks / plan.cluster);
  if (plan.num_items <= most) {
    return plan.num_items;
  }
  int32_t best = most;
  int64_t best_load = INT64_MAX;
  for (int32_t clusters = most; clusters >= std::max(1, most * 3 / 4); --clusters) {
    std::array<int64_t, kMostBlocks> load = {};
    int32_t item = 0;
    for (int32_t t = 0; t < params.num_tasks; ++t) {
      const LinearTaskPlan& task = plan.tasks[static_cast<std::size_t>(t)];
      for (int32_t i = 0; i < task.row_blocks * plan.token_tiles; ++i, ++item) {
        load[static_cast<std::size_t>(item % clusters)] += task.tiles_per_row;
      }
    }
    const int64_t heaviest = *std::max_element(load.begin(), load.end());
    if (heaviest < best_load) {
      best_load = heaviest;
      best = clusters;
    }
  }
  return best;
}

bool cut_tasks(const LinearParams& params, int32_t row_tiles, LinearPlan& plan) {
  plan.num_items = 0;
  plan.scale_blocks = 0;
  plan.x_chunks = 0;
  for (int32_t t = 0; t < params.num_tasks; ++t) {
    const LinearTask& task = params.tasks[static_cast<std::size_t>(t)];
    LinearTaskPlan& cut = plan.tasks[static_cast<std::size_t>(t)];
    cut.leaves = leaves_with(params, task, plan.cluster);
    if (cut.leaves == 0) {
      return false;
    }
    const int32_t tile_inputs = task.format == WeightFormat::kBf16 ? 64 : 128;
    const int32_t tiles_per_stage = 2 / row_tiles;
    cut.row_blocks = task.num_outputs / (64 * row_tiles) * task.groups;
    cut.tiles_per_row = task.num_inputs / tile_inputs;
    cut.tiles_per_leaf = cut.tiles_per_row / cut.leaves;
    cut.stages_per_leaf = (cut.tiles_per_leaf + tiles_per_stage - 1) / tiles_per_stage;
    plan.num_items += cut.row_blocks * plan.token_tiles;
    const int32_t x_chunks_per_tile = task.format == WeightFormat::kE4m3AsBf16 ? 2 : 1;
    plan.x_chunks = std::max(plan.x_chunks, cut.tiles_per_row / plan.cluster * x_chunks_per_tile);
    if (task.format != WeightFormat::kBf16) {
      plan.scale_blocks = std::max(plan.scale_blocks, task.num_inputs / 128 / plan.cluster);
    }
  }
  return plan.scale_blocks <= kMaxScaleBlocks;
}

/// Blocks of one token tile.
int32_t blocks_of(const LinearPlan& plan) {
  return plan.num_items / plan.token_tiles * plan.cluster;
}

int32_t least_inputs(const LinearParams& params) {
  int32_t least = params.tasks[0].num_inputs;
  for (int32_t t = 1; t < params.num_tasks; ++t) {
    least = std::min(least, params.tasks[static_cast<std::size_t>(t)].num_inputs);
  }
  return least;
}

/// Enough blocks to keep the memory busy. Half the card does when a block's weights fit in flight
/// at once: that costs less than adding partial sums over a cluster.
bool fills_card(const LinearPlan& plan) {
  if (blocks_of(plan) >= kFullCard) {
    return true;
  }
  int32_t most_tiles = 0;
  for (const LinearTaskPlan& task : plan.tasks) {
    most_tiles = std::max(most_tiles, task.tiles_per_row);
  }
  return plan.cluster == 1 && blocks_of(plan) >= kFullCard / 2 && most_tiles <= kTilesInFlight;
}

}  // namespace

LinearPlan plan_linear(const LinearParams& params, int32_t row_tiles) {
  LinearPlan plan;
  if (params.num_tasks < 0 || params.num_tasks > kMaxLinearTasks || params.num_tokens < 0) {
    return plan;
  }
  for (int32_t t = 0; t < params.num_tasks; ++t) {
    if (!fits(params.tasks[static_cast<std::size_t>(t)], row_tiles)) {
      return plan;
    }
  }
  if (params.num_tasks == 0 || params.num_tokens == 0) {
    plan.valid = true;
    return plan;
  }
  const int32_t largest_tile = row_tiles == 1 ? 64 : 32;  // more would spill registers
  plan.token_tile = 8;
  while (plan.token_tile < largest_tile && plan.token_tile < params.num_tokens) {
    plan.token_tile *= 2;
  }
  plan.token_tiles = (params.num_tokens + plan.token_tile - 1) / plan.token_tile;

  // The smallest cluster that fills the card; when none does, the largest possible one. Rows are
  // counted for one token tile, so that the choice does not depend on the number of tokens.
  LinearPlan chosen;
  for (int32_t cluster = 1; cluster <= 8; cluster *= 2) {
    if (params.tuning.cluster != 0 && params.tuning.cluster != cluster) {
      continue;
    }
    plan.cluster = cluster;
    if (!cut_tasks(params, row_tiles, plan)) {
      continue;
    }
    chosen = plan;
    chosen.valid = true;
    if (fills_card(plan)) {
      break;
    }
  }
  if (!chosen.valid) {
    return chosen;
  }
  // Where four blocks share a sum, eight with half the work each bring the weights in sooner (not
  // with two row tiles: measured slower).
  if (row_tiles == 1 && chosen.cluster == 4 && params.tuning.cluster == 0 &&
      params.mode == LinearMode::kFast && blocks_of(chosen) * 2 <= kMostBlocks &&
      least_inputs(params) / 8 >= 512) {
    LinearPlan wider = chosen;
    wider.cluster = 8;
    if (cut_tasks(params, row_tiles, wider)) {
      chosen = wider;
    }
  }
  chosen.num_clusters = params.tuning.num_clusters != 0
                            ? std::min(params.tuning.num_clusters, chosen.num_items)
                            : balanced_clusters(params, chosen);

  // No more stages than a block has work for.
  int32_t most_work = 0;
  const int32_t items_per_cluster =
      (chosen.num_items + chosen.num_clusters - 1) / chosen.num_clusters;
  for (int32_t t = 0; t < params.num_tasks; ++t) {
    const LinearTaskPlan& cut = chosen.tasks[static_cast<std::size_t>(t)];
    most_work = std::max(most_work,
                         cut.stages_per_leaf * (cut.leaves / chosen.cluster) * items_per_cluster);
  }
  // Activations too wide to stay in shared memory go through the ring.
  if (x_is_resident(chosen.token_tile) &&
      resident_x_bytes(chosen.x_chunks, chosen.token_tile) > kMostResidentX) {
    chosen.token_tile = kStreamedTile;
  }
  const int32_t fixed = resident_x_bytes(chosen.x_chunks, chosen.token_tile) +
                        reduction_bytes(chosen.cluster, chosen.token_tile, row_tiles) +
                        scale_bytes(chosen.scale_blocks, chosen.token_tile) + kBarrierBytes;
  const int32_t stage_bytes = ring_stage_bytes(chosen.token_tile);
  // Room for a second block on the multiprocessor: of this launch or, running ahead, of the
  // successor. Only 62 clusters of four such blocks fit the card: large ones get room for a third.
  const bool many = chosen.cluster >= 4 && chosen.num_clusters * chosen.cluster > kMultiprocessors;
  const int32_t share = many ? kThirdShared : kHalfShared;
  const int32_t budget = fixed + 3 * stage_bytes <= share         ? share
                         : fixed + 3 * stage_bytes <= kHalfShared ? kHalfShared
                                                                  : kMostShared;
  const int32_t wanted = params.tuning.stages != 0
                             ? params.tuning.stages
                             : std::min(most_work, (budget - fixed) / stage_bytes);
  chosen.stages =
      std::clamp(wanted, 1, std::min(kMaxRingStages, (kMostShared - fixed) / stage_bytes));
  chosen.x_offset = chosen.stages * stage_bytes;
  chosen.reduction_offset = chosen.x_offset + resident_x_bytes(chosen.x_chunks, chosen.token_tile);
  chosen.barrier_offset =
      chosen.reduction_offset + reduction_bytes(chosen.cluster, chosen.token_tile, row_tiles);
  chosen.scale_offset = chosen.barrier_offset + kBarrierBytes;
  chosen.shared_bytes = chosen.x_offset + fixed;
  return chosen;
}

bool supports_linear(const LinearParams& params) {
  return plan_linear(params, 1).valid;
}

}  // namespace baleen::kernels
