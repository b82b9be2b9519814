#pragma once
// From accumulators to y: partial sums of a cluster's blocks meet at the block
// that owns the token pair, which adds them as a balanced tree and stores.
// Included by linear_body.cuh.

#include <cstdint>

#include "kernels/linear/linear_epilogue.cuh"
#include "kernels/linear/linear_products.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/push_to_peer.cuh"
#include "kernels/ptx/remote_arrive.cuh"

namespace baleen::kernels::linear_body {

template <class T, int kTokens, int kRowTiles>
struct Sums : Products<T, kTokens, kRowTiles> {
  using Base = Products<T, kTokens, kRowTiles>;
  using Base::acc;
  using Base::arena;
  using Base::Base;
  using Base::lane;
  using Base::params;
  using Base::rank;
  using Base::thread;
  using Base::warp;

  int shift = params.cluster_shift;
  uint32_t item_parity = 0;  // parity of `reduced` and `drained`

  __device__ float4 fragment(int j) const {
    return make_float4(acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]);
  }

  /// Without a cluster and without quantising, straight from the accumulators.
  __device__ void store_item(const Item& item) const {
    if (params.tasks[item.task].output == LinearOutput::kFloat32) {
      store_all<float>(item);
    } else {
      store_all<uint16_t>(item);
    }
  }
  template <class Stored>
  __device__ __forceinline__ void store_all(const Item& item) const {
    const LinearDeviceTask& task = params.tasks[item.task];
    const int row = item.row_block * (64 * kRowTiles) + 16 * warp + lane / 4;
    const int first = item.token_tile * kTokens + 2 * (lane % 4);
    const int left = params.num_tokens - first;
    const int64_t stride = task.y_stride;
    Stored* at = static_cast<Stored*>(task.y) + first * stride + row;
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      if (8 * j < left) {
        at[0] = stored<Stored>(acc[4 * j]);
        at[8] = stored<Stored>(acc[4 * j + 2]);
      }
      if (8 * j + 1 < left) {
        at[stride] = stored<Stored>(acc[4 * j + 1]);
        at[stride + 8] = stored<Stored>(acc[4 * j + 3]);
      }
      at += 8 * stride;
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
};

}  // namespace baleen::kernels::linear_body
