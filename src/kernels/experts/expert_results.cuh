#pragma once
// What becomes of the sums of an item: SwiGLU and hidden rows after the up product, slots and their
// combination after the down product. Used by experts_sm90.cu.

#include <cmath>
#include <cstdint>

#include "kernels/experts/expert_inputs.cuh"
#include "kernels/experts/expert_work.cuh"
#include "kernels/ptx/convert.cuh"
#include "kernels/ptx/global_counter.cuh"
#include "numerics/bfloat16.h"

namespace baleen::kernels::experts {

__device__ __forceinline__ float clamped_swiglu(float gate, float up, float limit) {
  // A NaN stays one: fminf and fmaxf would drop it.
  const float g = gate > limit ? limit : gate;
  const float u = up > limit ? limit : (up < -limit ? -limit : up);
  return g / (1.0F + expf(-g)) * u;
}

/// Gate and up of a channel sit in one lane: SwiGLU, route weight and the store of the hidden rows.
__device__ __forceinline__ void store_hidden(const Consumer& consumer,
                                             const Item& item,
                                             float limit,
                                             const float (&sum)[kValues]) {
  const Task& task = consumer.task;
  const int channel = item.tile * 32 + consumer.thread / 32 * 8 + consumer.thread % 32 / 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int column = consumer.thread % 4 * 2 + r;
    if (column < item.unit.count) {
      const float gate = numerics::round_to_bf16(sum[r]);
      const float up = numerics::round_to_bf16(sum[2 + r]);
      const uint16_t value =
          numerics::bf16_from_float(clamped_swiglu(gate, up, limit) * item.unit.weights[column]);
      const int64_t at =
          static_cast<int64_t>(item.unit.begin + column) * task.params.width + channel;
      task.hidden_rows[at] = value;
    }
  }
}

__device__ __forceinline__ void store_slots(const Consumer& consumer,
                                            const Item& item,
                                            int tile,
                                            const float (&sum)[kValues]) {
  const Task& task = consumer.task;
  const int row = tile * kExpertTileRows + consumer.thread / 32 * 16 + consumer.thread % 32 / 4;
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const int column = consumer.thread % 4 * 2 + i % 2;
    if (column < item.unit.count) {
      const int64_t at =
          static_cast<int64_t>(item.unit.entries[column]) * task.params.hidden + row + i / 2 * 8;
      if (task.params.round == MoeRound::kPerExpert) {
        static_cast<uint16_t*>(task.slot_rows)[at] = numerics::bf16_from_float(sum[i]);
      } else {
        static_cast<float*>(task.slot_rows)[at] = sum[i];
      }
    }
  }
}

/// Counts this item for its tokens and sums the slots of those that are now complete.
__device__ __forceinline__ void combine(const Consumer& consumer, const Item& item) {
  const Task& task = consumer.task;
  const ExpertsParams& params = task.params;
  GroupShared& group = consumer.group;
  consumer.sync();
  if (consumer.thread < 32) {
    bool complete = false;
    int32_t token = 0;
    if (consumer.thread < item.unit.count) {
      token = item.unit.entries[consumer.thread] / params.slots;
      int32_t* done =
          task.done + static_cast<int64_t>(token) * (params.hidden / kExpertTileRows) + item.part;
      complete = ptx::add_acquire_release(done, 1) == params.slots - 1;
      if (complete) {
        *done = 0;
      }
    }
    const uint32_t mask = __ballot_sync(0xFFFFFFFFU, complete);
    if (complete) {
      group.finished[__popc(mask & ((1U << consumer.thread) - 1U))] = token;
    }
    if (consumer.thread == 0) {
      group.num_finished = __popc(mask);
    }
  }
  consumer.sync();
  const int pairs = item.tiles * (kExpertTileRows / 2);
  const int total = group.num_finished * pairs;
  for (int i = consumer.thread; i < total; i += 128) {
    const int which = i / pairs;
    const int column = item.tile * kExpertTileRows + (i - which * pairs) * 2;
    const int64_t token = group.finished[which];
    const int64_t first = token * params.slots * params.hidden + column;
    if (params.round == MoeRound::kPerExpert) {
      uint32_t values[8];
#pragma unroll
      for (int s = 0; s < 8; ++s) {
        if (s < params.slots) {
          values[s] = __ldcg(
              reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(task.slot_rows) +
                                                first + static_cast<int64_t>(s) * params.hidden));
        }
      }
      float left = 0.0F;
      float right = 0.0F;
#pragma unroll
      for (int s = 0; s < 8; ++s) {
        if (s < params.slots) {
          left += ptx::low_bf16(values[s]);
          right += ptx::high_bf16(values[s]);
        }
      }
      *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(params.y) + token * params.hidden +
                                   column) = ptx::pack_bf16(left, right);
    } else {
      float2 total_pair = make_float2(0.0F, 0.0F);
      for (int s = 0; s < params.slots; ++s) {
        const float2 value = __ldcg(
            reinterpret_cast<const float2*>(static_cast<const float*>(task.slot_rows) + first +
                                            static_cast<int64_t>(s) * params.hidden));
        total_pair.x += value.x;
        total_pair.y += value.y;
      }
      *reinterpret_cast<float2*>(static_cast<float*>(params.y) + token * params.hidden + column) =
          total_pair;
    }
  }
}

}  // namespace baleen::kernels::experts
