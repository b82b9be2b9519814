#pragma once
// What a consumer thread of the linear kernel brings beside the weights: its
// block's stretch of x in shared memory, where it stays, and the scales of x
// and weights. Included by linear_products.cuh.

#include <cstdint>

#include "kernels/linear/linear_layout.h"
#include "kernels/linear/linear_ring.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "numerics/float8.h"

namespace baleen::kernels::linear_body {

/// A scale as stored. Decoding is left to scale_value, so that a thread that
/// asks for a scale does not wait for it.
__device__ __forceinline__ uint32_t request_scale(const void* scales,
                                                  ScaleFormat format,
                                                  int64_t at) {
  uint32_t stored;
  if (format == ScaleFormat::kUe8m0) {
    stored = static_cast<const uint8_t*>(scales)[at];
  } else {
    stored = static_cast<const uint32_t*>(scales)[at];
  }
  return stored;
}

__device__ __forceinline__ float scale_value(uint32_t stored, ScaleFormat format) {
  return format == ScaleFormat::kUe8m0 ? numerics::ue8m0_to_float(static_cast<uint8_t>(stored))
                                       : numerics::float_from_bits(stored);
}

template <class T, int kTokens, int kRowTiles>
struct Inputs {
  const LinearDeviceParams& params;
  const Arena<T>& arena;
  int rank;
  int thread = static_cast<int>(threadIdx.x);
  int warp = thread / 32;
  int row_tile = warp / 4;  // a warp group has its own 64 rows
  int lane = thread % 32;
  uint32_t x_scale[kTokens / 4];  // as stored, on its way

  __device__ Inputs(const LinearDeviceParams& params, const Arena<T>& arena, int rank)
      : params(params), arena(arena), rank(rank) {}

  /// Blocks of 128 inputs that this block of threads meets in an item of the
  /// task.
  __device__ static int scale_blocks(const LinearDeviceTask& task) {
    return task.format == WeightFormat::kBf16 ? 0 : task.leaves_per_block * task.tiles_per_leaf;
  }

  __device__ uint32_t request_weight_scale(const Item& item, int block) const {
    const LinearDeviceTask& task = params.tasks[item.task];
    const int blocks = scale_blocks(task);
    if (block >= blocks) {
      return 0;
    }
    const int64_t scale_row = static_cast<int64_t>(item.row_block) * kRowTiles / 2;
    return request_scale(task.weight_scales,
                         task.weight_scale_format,
                         scale_row * task.tiles_per_row + rank * blocks + block);
  }
  /// Decodes this thread's weight scale of an item and shows it to the block.
  __device__ void keep_weight_scale(const Item& item, int half, uint32_t stored) const {
    if (thread < params.scale_blocks) {
      arena.weight_scales[half * params.scale_blocks + thread] =
          scale_value(stored, params.tasks[item.task].weight_scale_format);
    }
  }

  /// This block's stretch of every token's x; complete after async_copy_wait.
  /// Rows past the last token keep what they hold: a column of the product
  /// depends on its own row of x alone.
  __device__ void load_x(const Item& item) const {
    const LinearDeviceTask& task = params.tasks[item.task];
    const int chunks = task.leaves_per_block * task.tiles_per_leaf * x_chunks_per_tile(task.format);
    int first_chunk = rank * chunks;
    if constexpr (kRowTiles == 2) {
      first_chunk += item.row_block / task.row_blocks_per_group * task.x_chunks_per_group;
    }
    const uint8_t* begin = task.x + static_cast<int64_t>(first_chunk) * kTileRowBytes;
#pragma unroll
    for (int round = 0; round < (kTokens + T::kConsumerWarps - 1) / T::kConsumerWarps; ++round) {
      const int token = T::kConsumerWarps * round + warp;
      if (token < params.num_tokens) {
        const uint8_t* row = begin + token * task.x_stride_bytes + lane * 16;
        uint8_t* place = arena.resident_x + (lane / 8) * T::kChunkBytes +
                         swizzled_tile_offset(token, lane % 8 * 16);
        for (int vector = lane; vector < chunks * 8; vector += 32) {
          ptx::async_copy_16(place, row, 16);
          row += 32 * 16;
          place += 4 * T::kChunkBytes;
        }
      }
    }
    ptx::async_copy_commit();
  }

  /// x's scale of block `block` for the tokens 4 * round + warp (FP8 products
  /// have four consumer warps).
  __device__ __forceinline__ void read_x_scales(const Item& item, int block) {
    const LinearDeviceTask& task = params.tasks[item.task];
    const int blocks = scale_blocks(task);
    const int token = item.token_tile * kTokens + warp;
    const int left = block < blocks ? params.num_tokens - token : 0;
    const int64_t at = token * task.x_scale_stride + rank * blocks + block;
    if (task.x_scale_format == ScaleFormat::kUe8m0) {
      read_scales(static_cast<const uint8_t*>(task.x_scales) + at, task.x_scale_stride, left);
    } else {
      read_scales(static_cast<const uint32_t*>(task.x_scales) + at, task.x_scale_stride, left);
    }
  }
  template <class Stored>
  __device__ __forceinline__ void read_scales(const Stored* at, int64_t stride, int left) {
#pragma unroll
    for (int round = 0; round < kTokens / 4; ++round) {
      x_scale[round] = 4 * round < left ? uint32_t{*at} : 0U;
      at += 4 * stride;
    }
  }
  __device__ __forceinline__ void keep_x_scales(int block, ScaleFormat format) const {
    float* place = arena.x_scales + block * kTokens + warp;
    if (format == ScaleFormat::kUe8m0) {
#pragma unroll
      for (int round = 0; round < kTokens / 4; ++round) {
        place[4 * round] = numerics::ue8m0_to_float(static_cast<uint8_t>(x_scale[round]));
      }
    } else {
#pragma unroll
      for (int round = 0; round < kTokens / 4; ++round) {
        place[4 * round] = numerics::float_from_bits(x_scale[round]);
      }
    }
  }

  /// Requests this block's x and the scales of its first 32 blocks of inputs.
  __device__ __forceinline__ void request_activations(const Item& item) {
    if constexpr (T::kResident) {
      load_x(item);
    }
    if (kRowTiles == 1 && params.tasks[item.task].format == WeightFormat::kE4m3) {
      read_x_scales(item, lane);
    }
  }
  /// Waits for them and brings the scales of further blocks.
  __device__ __forceinline__ void keep_activations(const Item& item) {
    if (kRowTiles == 1 && params.tasks[item.task].format == WeightFormat::kE4m3) {
      const int blocks = scale_blocks(params.tasks[item.task]);
      for (int block = lane; block < blocks; block += 32) {
        if (block >= 32) {
          read_x_scales(item, block);
        }
        keep_x_scales(block, params.tasks[item.task].x_scale_format);
      }
    }
    if constexpr (T::kResident) {
      ptx::async_copy_wait<0>();
      ptx::fence_async_shared();
    }
  }

  /// True when the block's x of `next` is not that of `item`.
  __device__ bool needs_activations(const Item& item, const Item& next) const {
    return item.task != next.task || item.token_tile != next.token_tile ||
           (kRowTiles == 2 && item.row_block / params.tasks[item.task].row_blocks_per_group !=
                                  next.row_block / params.tasks[item.task].row_blocks_per_group);
  }
};

}  // namespace baleen::kernels::linear_body
