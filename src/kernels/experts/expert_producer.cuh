#pragma once
// The producer warps of the persistent expert kernel: each claims the items of its consumer warp
// group, announces them and keeps the group's ring of weight stages full. Used by experts_sm90.cu.

#include <cstdint>

#include "kernels/experts/expert_work.cuh"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/global_counter.cuh"
#include "kernels/ptx/role_registers.cuh"

namespace baleen::kernels::experts {

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

/// Waits that leave the issue slots to the consumers: asleep in the barrier, or between polls.
__device__ __forceinline__ void sleep_until(ptx::Barrier& barrier, uint32_t parity) {
  ptx::wait_or_leave([&] { return ptx::barrier_try_wait_long(&barrier, parity); });
}
template <class Ready>
__device__ __forceinline__ void wait_idle(Ready ready) {
  const int64_t begin = clock64();
  while (!ready()) {
    __nanosleep(40);
    if (clock64() - begin > ptx::kTrapAfterClocks) {
      __trap();
      return;
    }
  }
}

/// What a producer warp asks for first, before the block's barrier: the number of units and, a word
/// per lane, the unit of its first item. That is a guess of the shared form with one token, where
/// there are as many units as slots (fewer when the token names an expert twice: a guess in vain).
struct FirstUnit {
  int32_t num_units;
  int32_t number;
  int32_t word;
};

__device__ __forceinline__ int32_t load_unit_word(const ExpertsParams& params, int32_t unit) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int32_t* words = reinterpret_cast<const int32_t*>(params.lists.units + unit);
  return lane < kUnitWords ? __ldcg(words + lane) : 0;
}

__device__ __forceinline__ FirstUnit request_first_unit(const Task& task) {
  const ExpertsParams& params = task.params;
  FirstUnit first;
  first.number = min(static_cast<int32_t>(blockIdx.x) / (2 * params.width / kExpertTileRows),
                     min(params.slots, task.max_units) - 1);
  first.word = load_unit_word(params, first.number);
  first.num_units = __ldcg(params.lists.num_units);
  return first;
}

/// A producer warp: claims items, announces them and keeps the ring full. All lanes walk together;
/// the first one copies.
template <bool kShortEnd>
__device__ __forceinline__ void produce(const Task& task,
                                        BlockShared& shared,
                                        int group_index,
                                        const FirstUnit& first) {
  const ExpertsParams& params = task.params;
  GroupShared& group = shared.groups[group_index];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto grid = static_cast<int32_t>(gridDim.x);
  const auto block_index = static_cast<int32_t>(blockIdx.x);
  int32_t loaded = first.number;
  int32_t word = first.word;
  const Plan plan = make_plan<kShortEnd>(task, first.num_units);
  const int32_t workers = kGroups * grid;
  const int32_t worker = group_index * grid + block_index;
  int32_t claim = worker;  // later claims: from the counter, or every `workers`-th item
  if (plan.shared_up) {
    claim = block_index < plan.num_up ? block_index : plan.num_up + worker;
  }
  // With few items the up tiles of this block get the memory first: the down weights hide under the
  // hand-over between the phases.
  const bool gated = plan.shared_up || plan.num_up < workers;
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
  RingPosition<kStages> landed;
  int32_t coming = 0;
  RingPosition<kQueue> place;
  while (claim < plan.num_items) {
    const bool down = claim >= plan.num_up;
    const int32_t rows = down ? params.hidden : 2 * params.width;
    int32_t index = down ? claim - plan.num_up : claim;
    Divisor per_unit = down ? plan.down_items : plan.up_items;
    int32_t run = down ? plan.run : plan.up_run;
    int32_t unit = 0;
    const int32_t in_runs = plan.run_units * static_cast<int32_t>(per_unit.value);
    if (down && index >= in_runs) {
      index -= in_runs;
      unit = plan.run_units;
      per_unit = task.down_items[kLastRun - 1];
      run = kLastRun;
    }
    const int32_t units = per_unit.quotient(index);
    unit += units;
    const int32_t first_tile = (index - units * static_cast<int32_t>(per_unit.value)) * run;
    const int32_t tiles = min(run, rows / kExpertTileRows - first_tile);
    int32_t next = 0;
    if (!plan.fixed && lane == 0) {
      next = ptx::add_relaxed(task.next_item, 1);  // read much later, but by the last
    }
    if (unit != loaded) {
      word = load_unit_word(params, unit);
      loaded = unit;
    }
    const int32_t expert = __shfl_sync(0xFFFFFFFFU, word, 0);
    const bool fp8 = expert == params.num_experts;
    const bool share =
        !down && plan.shared_up && __shfl_sync(0xFFFFFFFFU, word, 2) <= kSharedTokens;
    if (down) {
      up_is_issued();
    }
    if (down || share || group_index == 0 || !plan.shared_up) {
      sleep_until(group.read[place.place], place.parity ^ 1U);
      Item& item = group.queue[place.place];
      if (lane < kUnitWords) {
        reinterpret_cast<int32_t*>(&item.unit)[lane] = word;
      }
      if (lane == 0) {
        item.number = unit;
        item.tile = first_tile;
        item.tiles = tiles;
        item.items = static_cast<int32_t>(per_unit.value);
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
      const int32_t leaf = up_leaf_blocks(params);
      const int32_t first_block = share ? group_index * leaf : 0;
      const int32_t end_block = share ? min(blocks, first_block + leaf) : blocks;
      const std::byte* source = item_weights(params, expert, first_tile, down, fp8);
      for (int32_t tile = 0; tile < tiles; ++tile) {
        for (int32_t block = first_block; block < end_block; block += stage_blocks) {
          const auto bytes =
              static_cast<uint32_t>(min(stage_blocks, end_block - block) * block_bytes);
          sleep_until(group.empty[stage.place], stage.parity ^ 1U);
          if (coming == kComing) {
            sleep_until(group.full[landed.place], landed.parity);
            landed.advance();
            --coming;
          }
          ++coming;
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
      next = __shfl_sync(0xFFFFFFFFU, next, 0);
      claim = workers + next;
      // Every worker claims one too many: so many claims there are, and this was the last.
      if (next == plan.num_items - 1 && lane == 0) {
        *task.next_item = 0;
      }
    } else if (plan.shared_up && !down) {
      claim = plan.num_up + worker;
    } else {
      claim += workers;
    }
    if (claim >= plan.num_up) {
      up_is_issued();
    }
  }
  sleep_until(group.read[place.place], place.parity ^ 1U);
  if (lane == 0) {
    group.queue[place.place].kind = ItemKind::kEnd;
    ptx::barrier_arrive(&group.announced[place.place]);
  }
}

}  // namespace baleen::kernels::experts
