#pragma once
// What a consumer warp group does with its items: up tiles alone or shared with the other groups of
// the block, and runs of down tiles. Used by experts_sm90.cu.

#include <cstdint>

#include "kernels/experts/expert_finisher.cuh"
#include "kernels/experts/expert_inputs.cuh"
#include "kernels/experts/expert_product.cuh"
#include "kernels/experts/expert_results.cuh"
#include "kernels/experts/expert_work.cuh"
#include "kernels/ptx/global_counter.cuh"

namespace baleen::kernels::experts {

/// Leaves this group's leaf of a shared up tile for the first group. True in that group, with all
/// leaves added in `sum`.
__device__ __forceinline__ bool gather_leaves(const Consumer& consumer,
                                              SharedTile& tile,
                                              bool has_leaf,
                                              float (&sum)[kValues]) {
  const int row = consumer.thread / 32 * 16 + consumer.thread % 32 / 4;
  const int column = consumer.thread % 4 * 2;
  if (has_leaf && column < kSharedTokens) {
    float* place = &tile.leaves[consumer.index][row][column];
    *reinterpret_cast<float2*>(place) = make_float2(sum[0], sum[1]);
    *reinterpret_cast<float2*>(place + 8 * kSharedTokens) = make_float2(sum[2], sum[3]);
  }
  __syncwarp();
  if (consumer.thread % 32 == 0) {
    ptx::barrier_arrive(&tile.full);
  }
  if (consumer.index != 0) {
    return false;
  }
  ptx::barrier_wait_or_leave(&tile.full, 0);
  if (column < kSharedTokens) {
    const ExpertsParams& params = consumer.task.params;
    const int leaf = up_leaf_blocks(params);
    const int leaves = (params.hidden / kExpertBlockInputs + leaf - 1) / leaf;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float2 value[kUpLeaves];
#pragma unroll
      for (int l = 0; l < kUpLeaves; ++l) {
        value[l] = *reinterpret_cast<const float2*>(&tile.leaves[l][row + 8 * half][column]);
      }
      const float2 total = add_up_leaves(
          value, leaves, [](float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); });
      sum[2 * half] = total.x;
      sum[2 * half + 1] = total.y;
    }
  }
  return true;
}

/// An up item is a run of row tiles, or one that the groups of the block share (each takes a leaf
/// of the sum). A down item is a run of row tiles, once the unit's up tiles are complete. One loop
/// serves all three. sum[r] as in wgmma.cuh: tile row 16 * warp + lane / 4 + 8 * (r / 2), token 2 *
/// (lane % 4) + r % 2. kRows: of the input tile; one or two if the unit has no more tokens.
/// kRoles: registers are moved between roles, which makes the compiler see by itself what is the
/// same in all lanes. kWords: hidden rows are awaited by their words, not by the unit's counter.
template <bool kFp8, int kRows, bool kRoles, bool kWords>
__device__ __forceinline__ void run_item(Consumer& consumer,
                                         BlockShared& shared,
                                         const Item& item) {
  const Task& task = consumer.task;
  const ExpertsParams& params = task.params;
  GroupShared& group = consumer.group;
  // The same in every lane, and known to be: what follows from it stays in uniform registers.
  const auto uniform = [](int32_t value) { return __shfl_sync(0xFFFFFFFFU, value, 0); };
  const auto kind = static_cast<ItemKind>(uniform(static_cast<int32_t>(item.kind)));
  const bool down = kind == ItemKind::kDown;
  const bool share = kind == ItemKind::kSharedUp;
  const int blocks = (down ? params.width : params.hidden) / kExpertBlockInputs;
  const int leaf_blocks = down ? params.leaf_blocks : up_leaf_blocks(params);
  const int first_block = share ? consumer.index * leaf_blocks : 0;
  const int length = share ? max(0, min(leaf_blocks, blocks - first_block)) : blocks;
  const InputTile<kRows> input(group);
  const UpSupply<kRows> supply{consumer, item.unit, input, first_block, length};
  if (!down) {
    consumer.sync();  // the products that read the old content are done
    supply.fetch(0);
    supply.load_scales();
  } else if constexpr (!kWords) {
    if (consumer.thread == 0) {
      const int up_tiles = 2 * params.width / kExpertTileRows;
      ptx::wait_or_leave([&] { return ptx::load_acquire(task.ready + item.number) >= up_tiles; });
    }
    consumer.sync();
  }
  WeightReader<kFp8> reader{group, consumer.lane, consumer.stage, {}};
  const int first_tile = uniform(item.tile);
  const int end_tile = first_tile + uniform(item.tiles);
  const int held = down ? input.kBlocks : supply.kAhead;  // blocks between two supplies
  float sum[kValues];
  for (int tile = first_tile; tile < end_tile; ++tile) {
    float pending[2][kValues];
    uint32_t leaf = 0;
    int leaf_left = leaf_blocks;
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      sum[i] = 0.0F;
    }
    float4* far_pending = &group.far_pending[consumer.thread];
    Weights weights;
    Parts<kFp8> parts = {};
    const auto start = [&](uint32_t at) {
      const uint32_t descriptor = kRoles ? at : uniform_word(at);
      reader.expand(weights);
      start_block<kFp8, input.kNextInputs>(weights, descriptor, parts);
    };
    uint32_t scales_at =
        ptx::pinned(consumer.lane.scales + static_cast<uint32_t>(first_block) * (kTokens * 2));
    const auto finish = [&](int step) {
      const uint32_t scales = ptx::load_shared_4(scales_at);
      scales_at += kTokens * 2;
      finish_block<kFp8>(weights, parts, scales, sum);
      if (--leaf_left == 0 && step + 1 < length) {
        add_leaf(pending, far_pending, leaf, false, sum);
        leaf_left = leaf_blocks;
        ++leaf;
      }
    };
    if (length > 0) {
      reader.fetch(true, length == 1);
    }
    for (int begin = 0; begin < length; begin += held) {
      if (!down) {
        const bool whole = length <= input.kBlocks;  // stays for the following tiles
        if (tile == first_tile || !whole) {
          supply.advance(begin, !whole && tile + 1 < end_tile);
        }
      } else if (tile == first_tile || blocks > held) {
        if (begin > 0 || tile > first_tile) {
          consumer.sync();  // the products that read the old content are done
        }
        for (int at = begin; at < min(begin + held, blocks); at += 8) {
          quantise_hidden<kRows, kWords>(consumer, item, input, at);
        }
        ptx::fence_async_shared();
        consumer.sync();
      }
      const int end = min(begin + held, length);
      uint32_t descriptor = input.descriptor(begin);
#pragma unroll 1
      for (int step = begin; step < end; step += 2) {
        // The next block's codes are fetched while the tensor cores work.
        start(descriptor);
        if (step + 1 == length) {
          finish(step);
          break;
        }
        reader.fetch(false, true);
        finish(step);
        start(descriptor + input.kNextBlock);
        descriptor += 2 * input.kNextBlock;
        if (step + 2 == length) {
          finish(step + 1);
          break;
        }
        reader.fetch(true, step + 3 == length);
        finish(step + 1);
      }
    }
    if (!share) {
      add_leaf(pending, far_pending, leaf, true, sum);
    }
    if (down) {
      store_slots(consumer, item, tile, sum);
    } else if (!share || gather_leaves(consumer, shared.tile, length > 0, sum)) {
      store_hidden<kWords>(consumer, item, tile, kFp8 ? params.shared_limit : params.limit, sum);
    }
  }
}

/// What is left of an item whose results are stored, where hidden rows are words; frees its place
/// in the queue. Up items leave nothing. The last down item of a unit makes its words zero again.
__device__ __forceinline__ void finish_words_item(const Consumer& consumer, uint32_t place) {
  const Task& task = consumer.task;
  GroupShared& group = consumer.group;
  const Item& item = group.queue[place];
  if (item.kind == ItemKind::kDown) {
    int32_t* ready = task.ready + item.number;
    int32_t readers = 0;  // that had read the words before: this group has
    if (consumer.thread == 0) {
      readers = ptx::add_relaxed(ready, 1);
    }
    combine<128>(task, group, item, consumer.thread, [&] { consumer.sync(); });
    if (consumer.thread < 32 && __shfl_sync(0xFFFFFFFFU, readers, 0) == item.items - 1) {
      const int32_t width = task.params.width;
      auto* words = reinterpret_cast<uint4*>(task.hidden_words +
                                             static_cast<int64_t>(item.unit.begin) * width);
      for (int i = consumer.thread; i < item.unit.count * width / 8; i += 32) {
        words[i] = make_uint4(0, 0, 0, 0);
      }
      if (consumer.thread == 0) {
        *ready = 0;
      }
    }
  }
  consumer.sync();  // nobody reads the item or the list of tokens any more
  if (consumer.thread == 0) {
    ptx::barrier_arrive(&group.read[place]);
  }
}

/// A consumer warp group: its items in order. Finishes them itself or leaves that to its finisher.
/// Units of at most kFew tokens have an input tile of kFew rows.
template <bool kFinishes, bool kWords, int kFew>
__device__ __forceinline__ void consume(const Task& task, BlockShared& shared, int index) {
  Consumer consumer{task,
                    shared.groups[index],
                    lane_places(shared.groups[index], threadIdx.x % 128),
                    index,
                    static_cast<int>(threadIdx.x % 128),
                    {}};
  GroupShared& group = consumer.group;
  for (uint32_t number = 0;; ++number) {
    const uint32_t place = number % kQueue;
    ptx::barrier_wait_or_leave(&group.announced[place], number / kQueue % 2);
    const Item& item = group.queue[place];  // stays in shared memory to save registers
    if (item.kind == ItemKind::kEnd) {
      return;
    }
    if (item.unit.expert == task.params.num_experts) {
      run_item<true, kTokens, !kFinishes, kWords>(consumer, shared, item);
    } else if (item.unit.count <= kFew) {
      run_item<false, kFew, !kFinishes, kWords>(consumer, shared, item);
    } else {
      run_item<false, kTokens, !kFinishes, kWords>(consumer, shared, item);
    }
    if constexpr (kFinishes) {
      consumer.sync();
      if constexpr (kWords) {
        finish_words_item(consumer, place);
      } else {
        finish_item<128>(task, group, index, place, consumer.thread, [&] { consumer.sync(); });
      }
    } else {
      __syncwarp();
      if (consumer.thread % 32 == 0) {
        ptx::barrier_arrive(&group.stored[place]);
      }
    }
  }
}

}  // namespace baleen::kernels::experts
