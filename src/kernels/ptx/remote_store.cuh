#pragma once
// st.async of 16 bytes into the shared memory of a block of the same cluster, counted on a barrier
// there, and arrival at such a barrier. Addresses are shared::cluster addresses from peer_address;
// `place` is 16-byte aligned.
//
//   store_async_16(peer_address(buffer, rank), value, peer_address(&full, rank));

#include <cstdint>

#include "kernels/ptx/cluster.cuh"

namespace baleen::kernels::ptx {

__device__ __forceinline__ void store_async_16(uint32_t place, float4 value, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(place),
      "r"(__float_as_uint(value.x)),
      "r"(__float_as_uint(value.y)),
      "r"(__float_as_uint(value.z)),
      "r"(__float_as_uint(value.w)),
      "r"(barrier)
      : "memory");
}

/// barrier.cluster.arrive without a memory fence: enough to tell the peers that this block runs and
/// its barriers are ready (fence_barrier_init came before). Pair with cluster_wait().
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

/// mbarrier.arrive on a barrier of another block, by its shared::cluster address.
__device__ __forceinline__ void arrive_at_peer(uint32_t barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier)
               : "memory");
}

}  // namespace baleen::kernels::ptx
