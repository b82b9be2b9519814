#pragma once
// What the persistent expert kernel works on: items, their list, and the shared memory of a block.
// Each of the four consumer warp groups of a block has a producer warp, in large steps a finisher
// warp, an item queue and a ring of weight stages of its own. Items are ordered: all up tiles (by
// unit, then tile), then all down items (by unit, then a run of row tiles). Every worker walks its
// items in ascending order, so whoever waits for items of lower numbers waits for warps that run
// already. Used by experts_sm90.cu.

#include <cstdint>

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
inline constexpr int kMostRunBlocks = 32;  // of a run of down tiles
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
  int32_t part;    // of the unit's items
  ItemKind kind;
};
inline constexpr int kUnitWords = sizeof(ExpertUnit) / 4;
static_assert(kUnitWords <= 32, "a warp copies a unit, a word per lane");

struct alignas(1024) GroupShared {
  uint8_t input[kInputBytes];  // token tiles in 128-byte swizzle, 1,024-byte atoms
  alignas(128) uint8_t weights[kStages][kStageBytes];
  uint16_t scales[kMaxBlocks * kExpertUnitTokens];  // bf16, [block][token of the unit]
  int32_t finished[kExpertUnitTokens];              // tokens that an item completed
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
  int32_t last;
};
static_assert(sizeof(BlockShared) <= 227 * 1024);

/// Device view of a launch.
struct Task {
  ExpertsParams params;
  int32_t* next_item;  // zero between launches, as all counters
  int32_t* exits;
  int32_t* ready;  // [units]
  int32_t* done;   // [tokens, hidden / 64]
  int32_t max_units;
  uint16_t* hidden_rows;
  void* slot_rows;
};

/// Sizes of the item list, the same in every thread of the grid.
struct Plan {
  int32_t up_items;    // per unit
  int32_t down_items;  // per unit
  int32_t up_run;      // row tiles of an up item; the last of a unit may have fewer
  int32_t run;         // row tiles of a down item, the same
  int32_t num_up;
  int32_t num_items;
  bool shared_up;  // block b works on up tile b with all its groups
  bool fixed;      // few items: every worker knows its own, nobody claims ahead of others
};

__device__ __forceinline__ Plan make_plan(const ExpertsParams& params, int32_t num_units) {
  Plan plan;
  const int32_t tiles = params.hidden / kExpertTileRows;
  const auto grid = static_cast<int32_t>(gridDim.x);
  const int32_t workers = kGroups * grid;
  // Longer runs share one quantised input; a small step gives every worker about one item, and a
  // long item at the end leaves the others idle.
  const int32_t most = max(1, min(4, kMostRunBlocks / (params.width / kExpertBlockInputs)));
  plan.run = min(most, max(1, (num_units * tiles + workers - 1) / workers));
  const int32_t up_tiles = 2 * params.width / kExpertTileRows;
  // Two up items for every worker at least, and only where a tile ends with its inputs' ring.
  plan.up_run = 1;
  while (plan.up_run < 4 && num_units * up_tiles >= 4 * plan.up_run * workers &&
         params.hidden / kExpertBlockInputs % kFewInputBlocks == 0) {
    plan.up_run *= 2;
  }
  plan.up_items = (up_tiles + plan.up_run - 1) / plan.up_run;
  plan.down_items = (tiles + plan.run - 1) / plan.run;
  plan.num_up = num_units * plan.up_items;
  plan.num_items = plan.num_up + num_units * plan.down_items;
  plan.shared_up = plan.num_up <= grid;
  plan.fixed = plan.shared_up || plan.num_items <= 3 * workers;
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
