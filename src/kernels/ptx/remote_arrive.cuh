#pragma once
// Telling the other blocks of a cluster: arrival at a barrier of theirs, and at the cluster's
// barrier without a fence.
//
//   arrive_at_peer(peer_address(&empty, rank));

#include <cstdint>

#include "kernels/ptx/cluster.cuh"

namespace baleen::kernels::ptx {

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
