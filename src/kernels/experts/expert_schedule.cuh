#pragma once
// Work list and shared memory of the persistent expert kernel. Each of the four consumer warp
// groups of a block works for itself: it has a producer warp that claims items, an item queue and a
// ring of weight stages. Items are ordered: all up tiles (by unit, then tile), then all down items
// (by unit, then a run of row tiles). Claims ascend, so whoever claims a down item may wait for up
// tiles: they are claimed already by running warps. Used by experts_sm90.cu.

#include <cstdint>

#include "kernels/experts/expert_tiles.h"
#include "kernels/experts/experts.h"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/global_counter.cuh"
#include "kernels/ptx/mbarrier.cuh"

namespace baleen::kernels::experts {

inline constexpr int kGroups = 4;  // consumer warp groups of a block
inline constexpr int kStages = 5;
inline constexpr int kStageBytes = 2 * kFp4BlockBytes;  // or one FP8 block
inline constexpr int kQueue = 4;                        // items announced ahead
inline constexpr int kInputBytes = 8192;
inline constexpr int kMaxBlocks = 56;
static_assert(kFp8BlockBytes <= kStageBytes);

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
  int32_t finished[kExpertUnitTokens];              // tokens that this item completed
  int32_t num_finished;
  Item queue[kQueue];
  ptx::Barrier full[kStages];
  ptx::Barrier empty[kStages];
  ptx::Barrier announced[kQueue];
  ptx::Barrier read[kQueue];
};

struct BlockShared {
  GroupShared groups[kGroups];
  float parts[kMaxBlocks][kExpertTileRows];  // of a shared up tile, its only token
  ExpertMagnitudes table[16];
  int32_t up_issued;  // producers of this block that have no up tiles left to request
  int32_t last;
};

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
  int32_t up_tiles;    // per unit
  int32_t down_items;  // per unit
  int32_t run;         // row tiles of a down item; the last of a unit may have fewer
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
  // Longer runs share one quantised input; a small step gives every worker about one item.
  plan.run = min(4, max(1, (num_units * tiles + workers - 1) / workers));
  plan.up_tiles = 2 * params.width / kExpertTileRows;
  plan.down_items = (tiles + plan.run - 1) / plan.run;
  plan.num_up = num_units * plan.up_tiles;
  plan.num_items = plan.num_up + num_units * plan.down_items;
  plan.shared_up = plan.num_up <= grid;
  plan.fixed = plan.shared_up || plan.num_items <= 3 * workers;
  return plan;
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

__device__ __forceinline__ const std::byte* item_weights(
    const ExpertsParams& params, int32_t expert, int32_t tile, bool down, bool fp8) {
  const int64_t inputs = down ? params.width : params.hidden;
  const int64_t rows = down ? params.hidden : 2 * params.width;
  const int64_t tile_bytes = inputs / 128 * (fp8 ? kFp8BlockBytes : kFp4BlockBytes);
  const std::byte* base;
  if (fp8) {
    base = down ? params.shared_down : params.shared_up;
  } else {
    base = (down ? params.down : params.up) + expert * (rows / kExpertTileRows * tile_bytes);
  }
  return base + tile * tile_bytes;
}

/// A wait that leaves the issue slots to the consumers.
template <class Ready>
__device__ __forceinline__ void wait_idle(Ready ready) {
  const int64_t begin = clock64();
  while (!ready()) {
    __nanosleep(40);
    if (clock64() - begin > ptx::kTrapAfterClocks) {
      __trap();
    }
  }
}

/// A producer warp: claims items, announces them and keeps the ring full. All lanes walk together;
/// the first one copies.
__device__ __forceinline__ void produce(const Task& task, BlockShared& shared, int group_index) {
  const ExpertsParams& params = task.params;
  GroupShared& group = shared.groups[group_index];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto grid = static_cast<int32_t>(gridDim.x);
  const auto block_index = static_cast<int32_t>(blockIdx.x);
  const auto load_unit = [&](int32_t unit) {
    const int32_t* words = reinterpret_cast<const int32_t*>(params.lists.units + unit);
    return lane < kUnitWords ? __ldcg(words + lane) : 0;
  };
  // The first unit is fetched together with the number of units: the guess of the shared form,
  // where there are as many units as slots (fewer when a token names an expert twice: a guess in
  // vain).
  int32_t loaded = min(block_index / (2 * params.width / kExpertTileRows),
                       min(params.slots, task.max_units) - 1);
  int32_t word = load_unit(loaded);
  const Plan plan = make_plan(params, __ldcg(params.lists.num_units));
  const int32_t workers = kGroups * grid;
  const int32_t worker = group_index * grid + block_index;
  int32_t claim = worker;  // later claims: from the counter, or every `workers`-th item
  if (plan.shared_up) {
    claim = block_index < plan.num_up ? block_index : plan.num_up + worker;
  }
  // With few items the up tiles of this block get the memory first: the down weights hide under the
  // hand-over between the phases.
  const bool gated = plan.num_up < workers;
  int32_t up_producers = 0;
  for (int g = 0; g < kGroups; ++g) {
    up_producers += (plan.shared_up ? block_index : g * grid + block_index) < plan.num_up ? 1 : 0;
  }
  bool issuing_up = claim < plan.num_up;
  const auto up_is_issued = [&] {
    if (issuing_up && lane == 0) {
      atomicAdd(&shared.up_issued, 1);
    }
    issuing_up = false;
  };
  RingPosition<kStages> stage;
  RingPosition<kQueue> place;
  while (claim < plan.num_items) {
    const bool down = claim >= plan.num_up;
    const int32_t index = down ? claim - plan.num_up : claim;
    const int32_t per_unit = down ? plan.down_items : plan.up_tiles;
    const int32_t unit = index / per_unit;
    const int32_t part = index - unit * per_unit;
    const int32_t first_tile = down ? part * plan.run : part;
    const int32_t tiles = down ? min(plan.run, params.hidden / kExpertTileRows - first_tile) : 1;
    int32_t next = 0;
    if (!plan.fixed && lane == 0) {
      next = ptx::add_relaxed(task.next_item, 1);  // read much later
    }
    if (unit != loaded) {
      word = load_unit(unit);
      loaded = unit;
    }
    const int32_t expert = __shfl_sync(0xFFFFFFFFU, word, 0);
    const bool fp8 = expert == params.num_experts;
    const bool share = !down && plan.shared_up && !fp8 && __shfl_sync(0xFFFFFFFFU, word, 2) == 1;
    if (down) {
      up_is_issued();
    }
    if (down || share || group_index == 0 || !plan.shared_up) {
      wait_idle([&] { return ptx::barrier_try_wait(&group.read[place.place], place.parity ^ 1U); });
      Item& item = group.queue[place.place];
      if (lane < kUnitWords) {
        reinterpret_cast<int32_t*>(&item.unit)[lane] = word;
      }
      if (lane == 0) {
        item.number = unit;
        item.tile = first_tile;
        item.tiles = tiles;
        item.part = part;
        item.kind = down ? ItemKind::kDown : (share ? ItemKind::kSharedUp : ItemKind::kUp);
      }
      __syncwarp();
      if (lane == 0) {
        ptx::barrier_arrive(&group.announced[place.place]);
      }
      place.advance();
      if (down && gated) {
        const volatile int32_t* issued = &shared.up_issued;
        wait_idle([&] { return *issued >= up_producers; });
      }
      const int32_t blocks = (down ? params.width : params.hidden) / 128;
      const int32_t stage_blocks = fp8 ? 1 : 2;
      const int32_t block_bytes = fp8 ? kFp8BlockBytes : kFp4BlockBytes;
      const int32_t first_block = share ? group_index * stage_blocks : 0;
      const int32_t stride = share ? kGroups * stage_blocks : stage_blocks;
      const std::byte* source = item_weights(params, expert, first_tile, down, fp8);
      for (int32_t tile = 0; tile < tiles; ++tile) {
        for (int32_t block = first_block; block < blocks; block += stride) {
          const auto bytes = static_cast<uint32_t>(min(stage_blocks, blocks - block) * block_bytes);
          wait_idle(
              [&] { return ptx::barrier_try_wait(&group.empty[stage.place], stage.parity ^ 1U); });
          if (lane == 0) {
            ptx::barrier_expect_bytes(&group.full[stage.place], bytes);
            ptx::bulk_load(group.weights[stage.place],
                           source + block * block_bytes,
                           bytes,
                           &group.full[stage.place],
                           ptx::kEvictFirst);
          }
          stage.advance();
        }
        source += blocks * block_bytes;
      }
    }
    if (!plan.fixed) {
      claim = workers + __shfl_sync(0xFFFFFFFFU, next, 0);
    } else if (plan.shared_up && !down) {
      claim = plan.num_up + worker;
    } else {
      claim += workers;
    }
    if (claim >= plan.num_up) {
      up_is_issued();
    }
  }
  wait_idle([&] { return ptx::barrier_try_wait(&group.read[place.place], place.parity ^ 1U); });
  if (lane == 0) {
    group.queue[place.place].kind = ItemKind::kEnd;
    ptx::barrier_arrive(&group.announced[place.place]);
  }
}

}  // namespace baleen::kernels::experts
