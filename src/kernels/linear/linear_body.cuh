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

#include "kernels/linear/linear_ring.cuh"
#include "kernels/linear/linear_sums.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/pdl.cuh"

namespace baleen::kernels::linear_body {

template <class T, int kTokens, int kRowTiles>
struct Consumer : Sums<T, kTokens, kRowTiles> {
  using Base = Sums<T, kTokens, kRowTiles>;
  using Base::arena;
  using Base::Base;
  using Base::keep_activations;
  using Base::keep_weight_scale;
  using Base::multiply_item;
  using Base::needs_activations;
  using Base::params;
  using Base::reduce_item;
  using Base::request_activations;
  using Base::request_weight_scale;
  using Base::shift;
  using Base::stages;
  using Base::store_item;
  using Base::thread;

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
    Consumer<T, kTokens, kRowTiles> consumer(params, arena, rank);
    consumer.run(cluster_index);
  }
}

}  // namespace baleen::kernels::linear_body
