#pragma once
// What the warps of the form for one token do: the producer, the consumer warp groups and the warp
// that turns sums of the up product into hidden values. Used by experts_solo_sm90.cu.

#include <cstdint>

#include "kernels/experts/expert_finisher.cuh"
#include "kernels/experts/expert_inputs.cuh"
#include "kernels/experts/expert_producer.cuh"
#include "kernels/experts/expert_results.cuh"
#include "kernels/experts/expert_solo.cuh"
#include "kernels/experts/expert_solo_product.cuh"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/convert.cuh"
#include "kernels/ptx/global_counter.cuh"
#include "kernels/ptx/loaded_arrive.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/push_to_peer.cuh"
#include "kernels/ptx/role_registers.cuh"

namespace baleen::kernels::experts::solo {

/// The producer, one thread: everything the groups multiply, in order and in turns.
__device__ __forceinline__ void produce(const Task& task,
                                        Shared& shared,
                                        int32_t rank,
                                        int32_t expert) {
  const ExpertsParams& params = task.params;
  const Deal deal(task.plan, rank);
  for (int32_t g = 0; g < kGroups; ++g) {
    const int32_t length = deal.length(g);
    if (length > 0) {
      Group& group = shared.groups[g];
      const auto bytes = static_cast<uint32_t>(length * kExpertBlockInputs);
      ptx::barrier_expect_bytes(&group.x_full, bytes);
      ptx::bulk_load(
          group.x, params.x_codes + g * deal.plan.leaf * kExpertBlockInputs, bytes, &group.x_full);
    }
  }
  RingPosition<kRing> stages[kGroups];
  const auto load = [&](int32_t g, const std::byte* source, int32_t blocks) {
    Group& group = shared.groups[g];
    RingPosition<kRing>& stage = stages[g];
    const auto bytes = static_cast<uint32_t>(min(2, blocks) * kFp4BlockBytes);
    sleep_until(group.empty[stage.place], stage.parity ^ 1U);
    ptx::barrier_expect_bytes(&group.full[stage.place], bytes);
    ptx::bulk_load(
        group.weights[stage.place], source, bytes, &group.full[stage.place], ptx::kEvictFirst);
    stage.advance();
  };
  for (int32_t tile = rank; tile < deal.plan.up_tiles; tile += kCluster) {
    const std::byte* source = item_weights(params, expert, tile, false, false);
    for (int32_t block = 0; block < deal.plan.leaf; block += 2) {
#pragma unroll
      for (int32_t g = 0; g < kGroups; ++g) {
        const int32_t left = deal.length(g) - block;
        if (left > 0) {
          load(g, source + static_cast<int64_t>(g * deal.plan.leaf + block) * kFp4BlockBytes, left);
        }
      }
    }
  }
  for (int32_t tile = deal.first_down; tile < deal.end_down; tile += kGroups) {
    const std::byte* source = item_weights(params, expert, tile, true, false);
    for (int32_t block = 0; block < deal.plan.down_blocks; block += 2) {
#pragma unroll
      for (int32_t g = 0; g < kGroups; ++g) {
        if (tile + g < deal.end_down) {
          load(g,
               source + static_cast<int64_t>(g * deal.plan.down_blocks + block) * kFp4BlockBytes,
               deal.plan.down_blocks - block);
        }
      }
    }
  }
}

/// The hidden row of the inbox as e4m3 per 128 inputs, by a warp group for itself.
__device__ __forceinline__ void quantise_row(const uint16_t* inbox,
                                             Group& group,
                                             int32_t width,
                                             int32_t thread) {
  const int32_t chunk = thread % 16;  // sixteen lanes share a block, eight values each
  for (int32_t block = thread / 16; block < width / kExpertBlockInputs; block += 8) {
    const int32_t at = block * kExpertBlockInputs + chunk * 8;
    const QuantisedEight quantised =
        quantise_eight(*reinterpret_cast<const uint4*>(inbox + at), thread);
    *reinterpret_cast<uint2*>(group.row + at) = quantised.codes;
    if (chunk == 0) {
      group.row_scales[block] = quantised.scale;
    }
  }
}

/// Sixteen rows of a slot by one warp, and their sum over the slots by the warp that is last.
__device__ __forceinline__ void store_and_combine(
    const Task& task, int32_t slot, int32_t row, int32_t lane, const float (&sum)[2]) {
  const ExpertsParams& params = task.params;
  if (lane % 4 == 0) {
    const int64_t at = static_cast<int64_t>(slot) * params.hidden + row + lane / 4;
    if (params.round == MoeRound::kPerExpert) {
      auto* rows = static_cast<uint16_t*>(task.slot_rows);
      rows[at] = numerics::bf16_from_float(sum[0]);
      rows[at + 8] = numerics::bf16_from_float(sum[1]);
    } else {
      auto* rows = static_cast<float*>(task.slot_rows);
      rows[at] = sum[0];
      rows[at + 8] = sum[1];
    }
  }
  __syncwarp();
  int32_t complete = 0;
  if (lane == 0) {
    int32_t* done = task.done + row / 16;
    complete = ptx::add_acquire_release(done, 1) == params.slots - 1 ? 1 : 0;
    if (complete != 0) {
      *done = 0;
    }
  }
  complete = __shfl_sync(0xFFFFFFFFU, complete, 0);
  if (complete != 0 && lane < 8) {
    experts::Task all{};
    all.params = params;
    all.slot_rows = task.slot_rows;
    add_slots(all, 0, row + 2 * lane);
  }
}

/// A consumer warp group.
__device__ __forceinline__ void consume(
    const Task& task, Shared& shared, int32_t index, int32_t rank, int32_t slot) {
  const ExpertsParams& params = task.params;
  Group& group = shared.groups[index];
  const auto thread = static_cast<int32_t>(threadIdx.x % 128);
  const int32_t lane = thread % 32;
  const int32_t warp = thread / 32;
  const auto sync = [&] { ptx::named_barrier_sync(static_cast<uint32_t>(index) + 1U, 128); };
  const Deal deal(task.plan, rank);
  const int32_t length = deal.length(index);
  if (thread < length) {
    group.x_scales[thread] =
        numerics::ue8m0_to_float(__ldg(params.x_scales + index * deal.plan.leaf + thread));
  }
  sync();
  Reader reader(group, static_cast<uint32_t>(thread));
  if (length > 0) {
    ptx::barrier_wait_or_leave(&group.x_full, 0);
  }
  // One loop for both products: their code is fetched once. The first block of a tile is fetched
  // while the group waits for what the tile is multiplied with.
  const int32_t ups = (deal.plan.up_tiles - rank + kCluster - 1) / kCluster;
  const int32_t downs = (deal.end_down - deal.first_down - index + kGroups - 1) / kGroups;
  RawFp4 raw;
  for (int32_t number = 0;; ++number) {
    const bool down = number >= ups;
    const int32_t blocks = number == ups + downs ? 0 : (down ? deal.plan.down_blocks : length);
    if (blocks > 0) {
      reader.fetch(raw, true, blocks == 1);
    }
    if (number == ups) {
      ptx::barrier_wait_cluster_or_leave(&shared.inbox_full, 0);
      quantise_row(shared.inbox, group, params.width, thread);
      ptx::fence_async_shared();
      sync();
    }
    if (number == ups + downs) {
      return;
    }
    float sum[2];
    multiply_tile(reader,
                  raw,
                  ptx::shared_address(down ? group.row : group.x),
                  ptx::shared_address(down ? group.row_scales : group.x_scales),
                  blocks,
                  down ? params.leaf_blocks : deal.plan.leaf,
                  sum);
    if (down) {
      const int32_t tile = deal.first_down + index + (number - ups) * kGroups;
      store_and_combine(task, slot, tile * kExpertTileRows + warp * 16, lane, sum);
      continue;
    }
    const int32_t place = number % 2;
    if (number >= 2) {
      ptx::barrier_wait_or_leave(&shared.leaves_read[place],
                                 static_cast<uint32_t>(number / 2 + 1) % 2);
    }
    if (lane % 4 == 0) {
      float* leaf = &shared.leaves[place][index][warp * 16 + lane / 4];
      leaf[0] = sum[0];
      leaf[8] = sum[1];
    }
    __syncwarp();
    if (lane == 0) {
      ptx::barrier_arrive(&shared.leaves_full[place]);
    }
  }
}

/// The finisher warp: leaves of the up tiles to hidden values, pushed to all blocks. A lane has a
/// channel of the tile, then half of what a peer gets.
__device__ __forceinline__ void finish_up(
    const Task& task, Shared& shared, int32_t rank, int32_t place_in_list, float weight) {
  const ExpertsParams& params = task.params;
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const Deal deal(task.plan, rank);
  const int32_t leaves = task.plan.leaves;
  const auto peer = static_cast<uint32_t>(lane / 2);
  const uint32_t inbox = ptx::peer_address(shared.inbox, peer);
  const uint32_t inbox_full = ptx::peer_address(&shared.inbox_full, peer);
  int32_t number = 0;
  for (int32_t tile = rank; tile < deal.plan.up_tiles; tile += kCluster, ++number) {
    const int32_t place = number % 2;
    ptx::barrier_wait_or_leave(&shared.leaves_full[place], static_cast<uint32_t>(number / 2) % 2);
    const int32_t row = lane / 8 * 16 + lane % 8;
    float sums[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float value[kUpLeaves];
#pragma unroll
      for (int l = 0; l < kUpLeaves; ++l) {
        value[l] = shared.leaves[place][l][row + 8 * half];
      }
      sums[half] = add_up_leaves(value, leaves, [](float a, float b) { return a + b; });
    }
    __syncwarp();
    if (lane == 0) {
      ptx::barrier_arrive_loaded(&shared.leaves_read[place], __float_as_uint(sums[0]));
    }
    const float gate = numerics::round_to_bf16(sums[0]);
    const float up = numerics::round_to_bf16(sums[1]);
    const uint16_t value =
        numerics::bf16_from_float(clamped_swiglu(gate, up, params.limit) * weight);
    shared.outbox[lane] = value;
    __syncwarp();
    const auto* from = reinterpret_cast<const float4*>(shared.outbox) + lane % 2 * 2;
    const float4 first = from[0];
    const float4 second = from[1];
    const uint32_t at = inbox + static_cast<uint32_t>(tile * 64 + lane % 2 * 32);
    ptx::push_float4(at, first, inbox_full);
    ptx::push_float4(at + 16, second, inbox_full);
    task.hidden_rows[static_cast<int64_t>(place_in_list) * params.width + tile * 32 + lane] = value;
    __syncwarp();
  }
}

}  // namespace baleen::kernels::experts::solo
