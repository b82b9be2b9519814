#pragma once
// What the persistent expert kernel works on: items, their list, and the shared memory of a block.
// Each of the four consumer warp groups of a block has a producer warp, in large steps a finisher
// warp, an item queue and a ring of weight stages of its own. Items are ordered: all up tiles (by
// unit, then tile), then all down items (by unit, then a run of row tiles). Every worker walks its
// items in ascending order, so whoever waits for items of lower numbers waits for warps that run
// already. Used by experts_sm90.cu.

#include <algorithm>
#include <cstdint>

#include "kernels/experts/expert_divisor.h"
#include "kernels/experts/expert_tiles.h"
#include "kernels/experts/experts.h"
#include "kernels/ptx/mbarrier.cuh"

namespace baleen::kernels::experts {

inline constexpr int kGroups = 4;  // consumer warp groups of a block
inline constexpr int kStages = 5;
inline constexpr int kStageBytes = 2 * kFp4BlockBytes;  // or one FP8 block
inline constexpr int kQueue = 4;                        // items announced ahead
inline constexpr int kComing = 2;  // stages of a ring on their way at once: the first comes sooner
inline constexpr int kInputBytes = 8192;
inline constexpr int kFewInputBlocks = kInputBytes / (2 * kExpertBlockInputs);  // of two tokens
inline constexpr int kMaxBlocks = 56;
inline constexpr int kMostRun = 4;         // row tiles of an item
inline constexpr int kMostRunBlocks = 32;  // of a run of down tiles
inline constexpr int kLastRun = 2;         // of the last down items of a long step
inline constexpr int kLastTiles = 4;       // of a worker in such items
inline constexpr int kUpLeaves = kGroups;  // stretches of an up product's sum
inline constexpr int kFewTokens = 2;       // units of no more have their inputs in one tile
inline constexpr int kSharedTokens = 4;    // most of a unit whose up tiles the groups share
static_assert(kFp8BlockBytes <= kStageBytes);

/// kSharedUp: the groups of a block take a leaf of the tile each.
enum class ItemKind : int32_t { kEnd, kUp, kSharedUp, kDown };

struct Item {
  ExpertUnit unit;
  int32_t number;  // of the unit
  int32_t tile;    // first row tile
  int32_t tiles;   // row tiles of this item
  int32_t items;   // down items of its unit
  ItemKind kind;
};
inline constexpr int kUnitWords = sizeof(ExpertUnit) / 4;
static_assert(kUnitWords <= 32, "a warp copies a unit, a word per lane");

struct alignas(1024) GroupShared {
  uint8_t input[kInputBytes];  // token tiles in 128-byte swizzle, 1,024-byte atoms
  alignas(128) uint8_t weights[kStages][kStageBytes];
  uint16_t scales[kMaxBlocks * kExpertUnitTokens];  // bf16, [block][token of the unit]
  uint8_t
      finished[kMostRun * kExpertUnitTokens];  // what an item completed: kMostRun * entry + tile
  int32_t num_finished;
  float4 far_pending[128];  // of a lane's sums, see add_leaf
  Item queue[kQueue];
  ptx::Barrier full[kStages];
  ptx::Barrier empty[kStages];
  ptx::Barrier announced[kQueue];
  ptx::Barrier stored[kQueue];  // an item's results: an arrival per consumer warp
  ptx::Barrier read[kQueue];    // by the warp that finishes the item
};

/// Leaves of a shared up tile on their way to the group that finishes it. A block has one at most.
struct SharedTile {
  float leaves[kUpLeaves][kExpertTileRows][kSharedTokens];
  ptx::Barrier full;  // an arrival per consumer warp
};

struct BlockShared {
  GroupShared groups[kGroups];
  SharedTile tile;
  int32_t up_issued;  // producers of this block that have no up tiles left to request
};
static_assert(sizeof(BlockShared) <= 227 * 1024);

/// Device view of a launch. All counters are zero between launches: whoever sees that nobody will
/// look at one any more takes it back.
struct Task {
  ExpertsParams params;
  int32_t* next_item;
  int32_t* ready;  // [units]: finished up tiles, then down items
  int32_t* done;   // [tokens, hidden / 64]
  int32_t max_units;
  uint16_t* hidden_rows;
  uint16_t* hidden_words;  // the same in small steps, zero where not there yet
  void* slot_rows;
  int32_t most_run;              // of down tiles
  int32_t most_up_run;           // a power of two
  Divisor workers;               // of the grid
  Divisor up_items[3];           // per unit, of runs of 1, 2 and 4 up tiles
  Divisor down_items[kMostRun];  // per unit, of runs of 1 to kMostRun down tiles
};

/// What of a task's plan does not hang on the routes.
inline void plan_task(Task& task, int32_t grid) {
  const ExpertsParams& params = task.params;
  const int32_t tiles = params.hidden / kExpertTileRows;
  const int32_t up_tiles = 2 * params.width / kExpertTileRows;
  // Longer runs share one quantised input; a small step gives every worker about one item, and a
  // long item at the end leaves the others idle.
  task.most_run =
      std::max(1, std::min(kMostRun, kMostRunBlocks / (params.width / kExpertBlockInputs)));
  // Only where a tile ends with its inputs' ring.
  task.most_up_run = params.hidden / kExpertBlockInputs % kFewInputBlocks == 0 ? kMostRun : 1;
  task.workers = make_divisor(kGroups * grid);
  for (int32_t i = 0; i < 3; ++i) {
    task.up_items[i] = make_divisor((up_tiles + (1 << i) - 1) >> i);
  }
  for (int32_t run = 1; run <= kMostRun; ++run) {
    task.down_items[run - 1] = make_divisor((tiles + run - 1) / run);
  }
}

/// Sizes of the item list, the same in every thread of the grid.
struct Plan {
  Divisor up_items;    // per unit
  Divisor down_items;  // per unit
  int32_t up_run;      // row tiles of an up item; the last of a unit may have fewer
  int32_t run;         // row tiles of a down item, the same
  int32_t run_units;   // units with such runs; those behind them have runs of kLastRun
  int32_t num_up;
  int32_t num_items;
  bool shared_up;  // block b works on up tile b with all its groups
  bool fixed;      // few items: every worker knows its own, nobody claims ahead of others
};

/// kShortEnd: with finishers, who take what an item costs beside its product.
template <bool kShortEnd>
__device__ __forceinline__ Plan make_plan(const Task& task, int32_t num_units) {
  const ExpertsParams& params = task.params;
  Plan plan;
  const int32_t tiles = params.hidden / kExpertTileRows;
  const auto grid = static_cast<int32_t>(gridDim.x);
  const int32_t workers = kGroups * grid;
  plan.run = min(task.most_run, max(1, task.workers.quotient(num_units * tiles + workers - 1)));
  const int32_t up_tiles = 2 * params.width / kExpertTileRows;
  // Two up items for every worker at least.
  int32_t doublings = 0;
  while ((1 << doublings) < task.most_up_run && num_units * up_tiles >= (4 * workers)
                                                                            << doublings) {
    ++doublings;
  }
  plan.up_run = 1 << doublings;
  plan.up_items = task.up_items[doublings];
  plan.down_items = task.down_items[plan.run - 1];
  plan.num_up = num_units * static_cast<int32_t>(plan.up_items.value);
  plan.num_items = plan.num_up + num_units * static_cast<int32_t>(plan.down_items.value);
  plan.shared_up = plan.num_up <= grid;
  plan.fixed = plan.shared_up || plan.num_items <= 3 * workers;
  // A long step ends with short items: its workers come to the end at different times, up to a
  // whole item apart.
  plan.run_units = num_units;
  if (kShortEnd && !plan.fixed && plan.run > kLastRun) {
    plan.run_units =
        max(0, num_units - task.down_items[0].quotient(kLastTiles * workers + tiles - 1));
    plan.num_items =
        plan.num_up + plan.run_units * static_cast<int32_t>(plan.down_items.value) +
        (num_units - plan.run_units) * static_cast<int32_t>(task.down_items[kLastRun - 1].value);
  }
  return plan;
}

/// Blocks of 128 inputs in a leaf of the up product.
__device__ __forceinline__ int32_t up_leaf_blocks(const ExpertsParams& params) {
  return (params.hidden / kExpertBlockInputs + kUpLeaves - 1) / kUpLeaves;
}

/// Position in a ring of `Count` places.
template <int Count>
struct RingPosition {
  int place = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++place == Count) {
      place = 0;
      parity ^= 1U;
    }
  }
};

}  // namespace baleen::kernels::experts
