#pragma once
// What a consumer warp group stores of the sums of an item: SwiGLU and hidden rows after the up
// product, slots after the down product. Used by experts_sm90.cu.

#include <cmath>
#include <cstdint>

#include "kernels/experts/expert_inputs.cuh"
#include "kernels/experts/expert_work.cuh"
#include "kernels/ptx/convert.cuh"
#include "numerics/bfloat16.h"

namespace baleen::kernels::experts {

__device__ __forceinline__ float clamped_swiglu(float gate, float up, float limit) {
  // A NaN stays one: fminf and fmaxf would drop it.
  const float g = gate > limit ? limit : gate;
  const float u = up > limit ? limit : (up < -limit ? -limit : up);
  return g / (1.0F + expf(-g)) * u;
}

/// Gate and up of a channel sit in one lane: SwiGLU, route weight and the store of the hidden rows.
template <bool kWords>
__device__ __forceinline__ void store_hidden(const Consumer& consumer,
                                             const Item& item,
                                             int tile,
                                             float limit,
                                             const float (&sum)[kValues]) {
  const Task& task = consumer.task;
  const int channel = tile * 32 + consumer.thread / 32 * 8 + consumer.thread % 32 / 4;
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
      if constexpr (kWords) {
        ptx::store_arriving_bf16(task.hidden_words + at, value);
      }
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

}  // namespace baleen::kernels::experts
