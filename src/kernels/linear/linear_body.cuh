#pragma once
// Body of the small-M linear kernel for Hopper. Weight rows fill the 64-row
// side of wgmma, tokens its N side. Blocks of 160 threads: warp 4 feeds a ring
// of 16 KiB weight copies (and the matching columns of x), warps 0-3 multiply.
// A cluster shares each sum: block r takes the r-th part of the inputs and
// sends its partial sums to the block that owns the token pair, which adds them
// as a balanced tree and stores.
//
// Run-ahead: the ring is filled with weights before the predecessor has ended;
// only x and its scales are read after that. The successor is released at once,
// so that its ring fills meanwhile.

#include <cstdint>

#include "kernels/linear/linear_epilogue.cuh"
#include "kernels/linear/linear_multiply.cuh"
#include "kernels/linear/linear_ring.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/pdl.cuh"
#include "kernels/ptx/push_to_peer.cuh"
#include "kernels/ptx/remote_arrive.cuh"
#include "numerics/float8.h"

namespace baleen::kernels::linear_body {

/// A scale as stored. Decoding is left to scale_value, so that a thread that asks for a scale does
/// not wait for it.
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
struct Consumer {
  const LinearDeviceParams& params;
  const Arena<T>& arena;
  int rank;
  int shift = params.cluster_shift;
  int thread = static_cast<int>(threadIdx.x);
  int warp = thread / 32;
  int row_tile = warp / 4;  // a warp group has its own 64 rows
  int lane = thread % 32;
  int stages = params.stages;
  int slot = 0;
  uint32_t ring_parity = 0;
  uint32_t item_parity = 0;  // parity of `reduced` and `drained`
  float acc[T::kAccumulators];
  uint32_t x_scale[kTokens / 4];  // as stored, on its way

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

  /// x's scale of block `block` for the tokens 4 * round + warp (FP8 products have four consumer
  /// warps).
  __device__ __forceinline__ void read_x_scales(const Item& item, int block) {
    const LinearDeviceTask& task = params.tasks[item.task];
    const int blocks = scale_blocks(task);
    const int token_begin = item.token_tile * kTokens;
#pragma unroll
    for (int round = 0; round < kTokens / 4; ++round) {
      const int token = token_begin + 4 * round + warp;
      x_scale[round] = block < blocks && token < params.num_tokens
                           ? request_scale(task.x_scales,
                                           task.x_scale_format,
                                           token * task.x_scale_stride + rank * blocks + block)
                           : 0U;
    }
  }
  __device__ __forceinline__ void keep_x_scales(int block, ScaleFormat format) const {
#pragma unroll
    for (int round = 0; round < kTokens / 4; ++round) {
      arena.x_scales[block * kTokens + 4 * round + warp] = scale_value(x_scale[round], format);
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

  __device__ float4 fragment(int j) const {
    return make_float4(acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]);
  }

  /// Without a cluster and without quantising, straight from the accumulators.
  __device__ void store_item(const Item& item) const {
    const LinearDeviceTask& task = params.tasks[item.task];
    const int64_t row =
        static_cast<int64_t>(item.row_block) * (64 * kRowTiles) + 16 * warp + lane / 4;
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      const int token = item.token_tile * kTokens + 8 * j + 2 * (lane % 4);
      if (token < params.num_tokens) {
        store_fragment(task, token, token + 1 < params.num_tokens, row, fragment(j));
      }
    }
  }

  /// Token pair `pair` of this item belongs to block pair % cluster, which adds
  /// and stores it.
  struct Share {
    int pairs_per_owner;  // places in the reduction buffer
    int pairs;            // with at least one token
    int owned;            // of them, by this block
  };
  __device__ Share share_of(const Item& item) const {
    const int pairs = min(T::kPairs, (params.num_tokens - item.token_tile * kTokens + 1) / 2);
    return {(T::kPairs + (1 << shift) - 1) >> shift,
            pairs,
            pairs > rank ? ((pairs - rank - 1) >> shift) + 1 : 0};
  }

  __device__ void send_partials(const Share& share) const {
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      const int pair = 4 * j + lane % 4;
      if (pair < share.pairs) {
        const uint32_t owner = static_cast<uint32_t>(pair & ((1 << shift) - 1));
        float4* place = arena.reduction +
                        (rank * share.pairs_per_owner + (pair >> shift)) * T::kEntries + 8 * warp +
                        lane / 4;
        if (shift == 0) {
          *place = fragment(j);
        } else {
          ptx::push_float4(ptx::peer_address(place, owner),
                           fragment(j),
                           ptx::peer_address(arena.reduced, owner));
        }
      }
    }
  }

  __device__ void store_owned(const Item& item, const Share& share) const {
    const LinearDeviceTask& task = params.tasks[item.task];
    const bool quantised = kRowTiles == 2 && task.output == LinearOutput::kE4m3;
    const int count = share.owned * T::kEntries;
    for (int begin = 0; begin < count; begin += T::kConsumers) {
      const int i = begin + thread;
      const bool active = i < count;
      const int entry = i % T::kEntries;
      const int token = item.token_tile * kTokens + 2 * (((i / T::kEntries) << shift) + rank);
      const int64_t row =
          static_cast<int64_t>(item.row_block) * (64 * kRowTiles) + 16 * (entry / 8) + entry % 8;
      const bool second = token + 1 < params.num_tokens;
      float4 sum = make_float4(0, 0, 0, 0);
      if (active) {
        sum = tree_sum(arena.reduction + i, share.pairs_per_owner * T::kEntries, 1 << shift);
      }
      if (quantised) {
        store_quantised<T::kConsumers>(
            task, arena.exchange, active, token, second, row, item.row_block, sum);
      } else if (active) {
        store_fragment(task, token, second, row, sum);
      }
    }
  }

  __device__ void reduce_item(const Item& item, bool first, bool last) {
    const Share share = share_of(item);
    if (shift == 0) {
      send_partials(share);
      ptx::named_barrier_sync(kConsumerBarrier, T::kConsumers);
      store_owned(item, share);
      return;
    }
    if (thread == 0) {
      const int expected = (share.owned * T::kEntries * 16) << shift;
      ptx::barrier_expect_bytes(arena.reduced, static_cast<uint32_t>(expected));
    }
    if (!first) {
      ptx::barrier_wait_cluster(arena.drained, item_parity ^ 1);
    }
    send_partials(share);
    if (share.owned > 0) {
      ptx::barrier_wait_cluster(arena.reduced, item_parity);
      store_owned(item, share);
    }
    // The buffer may be written again when every block has read its part. Peers
    // wait for this before the next item; after the last one nobody waits and a
    // peer may have ended.
    if (!last) {
      ptx::named_barrier_sync(kConsumerBarrier, T::kConsumers);
      if (thread < (1 << shift)) {
        ptx::arrive_at_peer(ptx::peer_address(arena.drained, static_cast<uint32_t>(thread)));
      }
    }
    item_parity ^= 1;
  }

  /// True when the block's x of `next` is not that of `item`.
  __device__ bool needs_activations(const Item& item, const Item& next) const {
    return item.task != next.task || item.token_tile != next.token_tile ||
           (kRowTiles == 2 && item.row_block / params.tasks[item.task].row_blocks_per_group !=
                                  next.row_block / params.tasks[item.task].row_blocks_per_group);
  }

  __device__ void run(int cluster_index) {
    const int blocks = params.scale_blocks;
    Item item = find_item(params, cluster_index);
    uint32_t scale = 0;  // of this thread's block of inputs, as stored, on its way
    if (params.programmatic != 0) {
      // Weights and their scales are on their way when the predecessor ends.
      scale = request_weight_scale(item, thread);
      prepare_barriers();
      ptx::wait_for_predecessor();
      request_activations(item);
    } else {
      // x first: behind the weights it would arrive last.
      request_activations(item);
      scale = request_weight_scale(item, thread);
      ptx::named_barrier_arrive(kRequestedBarrier, T::kThreads);
      prepare_barriers();
    }
    keep_activations(item);
    keep_weight_scale(item, 0, scale);
    ptx::named_barrier_sync(kReadyBarrier, T::kThreads);  // with the producer's warp
    int half = 0;
    for (int index = cluster_index;;) {
      const LinearDeviceTask& task = params.tasks[item.task];
      const bool last = index + params.num_clusters >= params.num_items;
      const Item next = last ? item : find_item(params, index + params.num_clusters);
      scale = last ? 0 : request_weight_scale(next, thread);
      multiply_item(task, arena.weight_scales + half * blocks);
      if (shift == 0 && task.output != LinearOutput::kE4m3) {
        store_item(item);
      } else {
        reduce_item(item, index == cluster_index, last);
      }
      if (last) {
        return;
      }
      if (needs_activations(item, next)) {
        ptx::named_barrier_sync(kConsumerBarrier, T::kConsumers);  // everybody is done with the old
        request_activations(next);
        keep_activations(next);
      }
      half ^= 1;
      keep_weight_scale(next, half, scale);
      ptx::named_barrier_sync(kConsumerBarrier, T::kConsumers);
      index += params.num_clusters;
      item = next;
    }
  }

  /// The barriers that the producer does not need for its first requests, by one thread of the last
  /// warp; then every warp tells the cluster that it runs, and waits for all others.
  __device__ void prepare_barriers() const {
    if (thread == T::kConsumers - 32) {
      for (int i = 0; i < stages; ++i) {
        ptx::barrier_init(&arena.empty[i], T::kConsumerWarps);
      }
      if (shift > 0) {
        ptx::barrier_init(arena.reduced, 1);
        ptx::barrier_init(arena.drained, 1U << shift);
      }
      ptx::fence_barrier_init();
    }
    if (shift > 0) {
      __syncwarp();
      ptx::cluster_arrive_relaxed();
      ptx::cluster_wait();
    }
  }
};

template <int kTokens, int kRowTiles>
__device__ void run_block(const LinearDeviceParams& params,
                          const CUtensorMap* x_maps,
                          uint8_t* shared) {
  using T = Tile<kTokens, kRowTiles>;
  const Arena<T> arena(shared, params, kTokens);
  const int shift = params.cluster_shift;
  const int rank = static_cast<int>(blockIdx.x) & ((1 << shift) - 1);
  const int cluster_index = static_cast<int>(blockIdx.x) >> shift;
  if (threadIdx.x >= T::kConsumers) {
    const bool produces = threadIdx.x == T::kConsumers;
    Producer<T, kTokens, kRowTiles> producer(params, x_maps, arena, cluster_index, rank);
    int begin = 0;
    if (params.programmatic == 0) {
      if (produces) {
        producer.first_ring(0, 1);
      }
      __syncwarp();
      ptx::named_barrier_sync(kRequestedBarrier, T::kThreads);  // x goes before the other weights
      begin = 1;
    }
    if (produces) {
      producer.first_ring(begin, params.stages);
      producer.first_x();
    }
    __syncwarp();
    if (shift > 0) {
      ptx::cluster_arrive_relaxed();
    }
    ptx::named_barrier_sync(kReadyBarrier, T::kThreads);
    if (produces) {
      producer.rest();
    }
    __syncwarp();
    if (shift > 0) {
      ptx::cluster_wait();
    }
  } else {
    if (threadIdx.x == 0) {
      ptx::release_successor();
    }
    Consumer<T, kTokens, kRowTiles> consumer{params, arena, rank};
    consumer.run(cluster_index);
  }
}

}  // namespace baleen::kernels::linear_body
