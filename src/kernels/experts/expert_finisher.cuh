#pragma once
// What follows the stores of an item: after up tiles the unit's counter; after a run of down tiles
// the counters of its tokens, and the sum of the slots of those that are complete. All of it waits
// for memory, so in large steps a finisher warp of each consumer warp group does it while the group
// goes on; in small ones a warp of the group itself, which has less code to fetch and no hand-over.
// Used by experts_sm90.cu.

#include <cstdint>

#include "kernels/experts/expert_producer.cuh"
#include "kernels/experts/expert_work.cuh"
#include "kernels/ptx/convert.cuh"
#include "kernels/ptx/global_counter.cuh"

namespace baleen::kernels::experts {

inline constexpr int kMaxSlots = 8;
static_assert(kMostRun * kExpertUnitTokens <= 32, "a lane per token and tile of an item");

/// Sums the slots of `token` in columns `column` and the next, in the order of the slots.
__device__ __forceinline__ void add_slots(const Task& task, int64_t token, int32_t column) {
  const ExpertsParams& params = task.params;
  const int64_t place = token * params.hidden + column;
  const int64_t first = token * params.slots * params.hidden + column;
  if (params.round == MoeRound::kPerExpert) {
    const uint16_t* from = static_cast<const uint16_t*>(task.slot_rows) + first;
    uint32_t values[kMaxSlots];
#pragma unroll
    for (int s = 0; s < kMaxSlots; ++s) {
      if (s < params.slots) {
        values[s] = __ldcg(reinterpret_cast<const uint32_t*>(from));
        from += params.hidden;
      }
    }
    float left = 0.0F;
    float right = 0.0F;
#pragma unroll
    for (int s = 0; s < kMaxSlots; ++s) {
      if (s < params.slots) {
        left += ptx::low_bf16(values[s]);
        right += ptx::high_bf16(values[s]);
      }
    }
    *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(params.y) + place) =
        ptx::pack_bf16(left, right);
  } else {
    const float* from = static_cast<const float*>(task.slot_rows) + first;
    float2 total = make_float2(0.0F, 0.0F);
    for (int s = 0; s < params.slots; ++s) {
      const float2 value = __ldcg(reinterpret_cast<const float2*>(from));
      total.x += value.x;
      total.y += value.y;
      from += params.hidden;
    }
    *reinterpret_cast<float2*>(static_cast<float*>(params.y) + place) = total;
  }
}

/// Counts the tiles of a down item for its tokens and sums the slots where all are there. kThreads
/// (whole warps, numbered by `thread`) that `sync` brings together.
template <int kThreads, class Sync>
__device__ __forceinline__ void combine(
    const Task& task, GroupShared& group, const Item& item, int thread, Sync sync) {
  const ExpertsParams& params = task.params;
  if (thread < 32) {
    bool complete = false;
    const int entry = thread / kMostRun;
    const int tile = thread % kMostRun;
    if (entry < item.unit.count && tile < item.tiles) {
      const int32_t token = item.unit.entries[entry] / params.slots;
      int32_t* done = task.done + static_cast<int64_t>(token) * (params.hidden / kExpertTileRows) +
                      item.tile + tile;
      complete = ptx::add_acquire_release(done, 1) == params.slots - 1;
      if (complete) {
        *done = 0;
      }
    }
    const uint32_t mask = __ballot_sync(0xFFFFFFFFU, complete);
    if (complete) {
      group.finished[__popc(mask & ((1U << thread) - 1U))] = static_cast<uint8_t>(thread);
    }
    if (thread == 0) {
      group.num_finished = __popc(mask);
    }
  }
  sync();
  constexpr int kPairs = kExpertTileRows / 2;
  const int total = group.num_finished * kPairs;
  for (int i = thread; i < total; i += kThreads) {
    const int which = group.finished[i / kPairs];
    add_slots(task,
              item.unit.entries[which / kMostRun] / params.slots,
              (item.tile + which % kMostRun) * kExpertTileRows + i % kPairs * 2);
  }
}

/// What is left of an item whose results are stored; frees its place in the queue.
template <int kThreads, class Sync>
__device__ __forceinline__ void finish_item(
    const Task& task, GroupShared& group, int index, uint32_t place, int thread, Sync sync) {
  const Item& item = group.queue[place];
  int32_t* ready = task.ready + item.number;
  if (item.kind == ItemKind::kDown) {
    combine<kThreads>(task, group, item, thread, sync);
    // The last down item of a unit leaves its counter zero.
    if (thread == 0) {
      const int32_t up_tiles = 2 * task.params.width / kExpertTileRows;
      ptx::increase_or_wrap(ready, up_tiles + item.items - 1);
    }
  } else if (thread == 0 && (item.kind == ItemKind::kUp || index == 0)) {
    ptx::add_release(ready, item.tiles);
  }
  sync();  // nobody reads the item or the list of tokens any more
  if (thread == 0) {
    ptx::barrier_arrive(&group.read[place]);
  }
}

/// The finisher warp of a group.
__device__ __forceinline__ void finish(const Task& task, GroupShared& group, int index) {
  for (uint32_t number = 0;; ++number) {
    const uint32_t place = number % kQueue;
    const uint32_t parity = number / kQueue % 2;
    sleep_until(group.announced[place], parity);
    if (group.queue[place].kind == ItemKind::kEnd) {
      return;
    }
    ptx::barrier_wait_or_leave(&group.stored[place], parity);
    finish_item<32>(
        task, group, index, place, static_cast<int>(threadIdx.x) % 32, [] { __syncwarp(); });
  }
}

}  // namespace baleen::kernels::experts
