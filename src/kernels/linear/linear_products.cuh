#pragma once
// A consumer thread's way through the ring: waits for stages, multiplies what they hold, gives them
// back. Included by linear_sums.cuh.

#include <cstdint>

#include "kernels/linear/linear_inputs.cuh"
#include "kernels/linear/linear_multiply.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace baleen::kernels::linear_body {

template <class T, int kTokens, int kRowTiles>
struct Products : Inputs<T, kTokens, kRowTiles> {
  using Base = Inputs<T, kTokens, kRowTiles>;
  using Base::arena;
  using Base::Base;
  using Base::lane;
  using Base::params;
  using Base::row_tile;

  int stages = params.stages;
  int slot = 0;
  uint32_t ring_parity = 0;
  float acc[T::kAccumulators];

  __device__ __forceinline__ void await_stage() const {
    ptx::barrier_wait(&arena.full[slot], ring_parity);
  }
  __device__ __forceinline__ void release(int done) const {
    if (lane == 0) {
      ptx::barrier_arrive(&arena.empty[done]);
    }
  }
  __device__ __forceinline__ void next_slot() {
    if (++slot == stages) {
      slot = 0;
      ring_parity ^= 1;
    }
  }

  /// Blocks of 128 inputs in FP8, from `tile` to `end` of the item; two stages at a time where
  /// registers allow, because only independent blocks hide each other's latency.
  __device__ __forceinline__ void multiply_e4m3_leaf(int tile,
                                                     int end,
                                                     const float* weight_scales) {
    while (tile < end) {
      await_stage();
      const int first = slot;
      const uint8_t* weights = arena.weights(slot);
      const uint8_t* x = arena.x(slot, tile);
      const float* x_scales = arena.x_scales + tile * kTokens;
      next_slot();
      if (T::kResident && stages > 1 && end - tile >= 4) {
        await_stage();
        const int second = slot;
        multiply_e4m3<kTokens, T::kResident ? 4 : 2, 2>(
            acc, weights, arena.weights(slot), x, weight_scales + tile, x_scales);
        next_slot();
        release(first);
        release(second);
        tile += 4;
      } else if (end - tile >= 2) {
        multiply_e4m3<kTokens, 2, 2>(acc, weights, weights, x, weight_scales + tile, x_scales);
        release(first);
        tile += 2;
      } else {
        multiply_e4m3<kTokens, 1, 1>(acc, weights, weights, x, weight_scales + tile, x_scales);
        release(first);
        tile += 1;
      }
    }
  }

  /// The sum runs on in the tensor cores' accumulators; a stage is given back when the next one's
  /// products are under way.
  __device__ __forceinline__ void multiply_bf16_leaf(int tile, int end) {
    int before = -1;
    for (const int begin = tile; tile < end; tile += T::kTilesPerStage) {
      await_stage();
      const uint8_t* weights = arena.weights(slot) + row_tile * kTileBytes;
      const uint8_t* x = arena.x(slot, tile);
      if (kRowTiles == 1 && end - tile >= 2) {
        start_bf16<kTokens, 2 / kRowTiles>(acc, weights, x, tile > begin);
      } else {
        start_bf16<kTokens, 1>(acc, weights, x, tile > begin);
      }
      ptx::wgmma_wait<1>();
      if (before >= 0) {
        release(before);
      }
      before = slot;
      next_slot();
    }
    ptx::wgmma_wait<0>();
    ptx::pin_registers(acc);
    release(before);
  }

  __device__ __forceinline__ void multiply_converted_leaf(int tile,
                                                          int end,
                                                          const float* weight_scales) {
    for (; tile < end; ++tile) {
      await_stage();
      multiply_converted<kTokens>(acc,
                                  arena.weights(slot) + row_tile * kTileBytes,
                                  arena.x(slot, 2 * tile),
                                  weight_scales[tile]);
      release(slot);
      next_slot();
    }
  }

  __device__ __forceinline__ void multiply_leaf(WeightFormat format,
                                                int tile,
                                                int tiles,
                                                const float* weight_scales) {
#pragma unroll
    for (int i = 0; i < T::kAccumulators; ++i) {
      acc[i] = 0.0F;
    }
    if (format == WeightFormat::kBf16) {
      multiply_bf16_leaf(tile, tile + tiles);
    } else if constexpr (kRowTiles == 1) {
      multiply_e4m3_leaf(tile, tile + tiles, weight_scales);
    } else {
      multiply_converted_leaf(tile, tile + tiles, weight_scales);
    }
  }

  __device__ __forceinline__ void multiply_item(const LinearDeviceTask& task,
                                                const float* weight_scales) {
    const WeightFormat format = task.format;
    const int tiles = task.tiles_per_leaf;
    const bool two_leaves = task.leaves_per_block == 2;
    multiply_leaf(format, 0, tiles, weight_scales);
    if (two_leaves) {
      float first[T::kAccumulators];
#pragma unroll
      for (int i = 0; i < T::kAccumulators; ++i) {
        first[i] = acc[i];
      }
      multiply_leaf(format, tiles, tiles, weight_scales);
#pragma unroll
      for (int i = 0; i < T::kAccumulators; ++i) {
        acc[i] = first[i] + acc[i];
      }
    }
  }
};

}  // namespace baleen::kernels::linear_body
