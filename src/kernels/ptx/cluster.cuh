#pragma once
// Blocks of one cluster: rank, barrier, and access to each other's shared memory. A block must not
// end while a peer may still touch its shared memory: close with cluster_sync().
//
//   const float* theirs = peer_pointer(mine, rank);  // generic pointer
//   cluster_sync();

#include <cstdint>

#include "kernels/ptx/mbarrier.cuh"

namespace baleen::kernels::ptx {

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ uint32_t cluster_size() {
  uint32_t size;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}

__device__ __forceinline__ uint32_t cluster_index() {
  uint32_t index;
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(index));
  return index;
}

/// Every thread of every block arrives; writes before it are visible after the matching wait.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

/// Generic pointer to the same shared variable in block `rank` of the cluster.
template <class T>
__device__ __forceinline__ T* peer_pointer(T* shared, uint32_t rank) {
  uint64_t address;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(address) : "l"(shared), "r"(rank));
  return reinterpret_cast<T*>(address);
}

/// shared::cluster address of the same shared variable in block `rank`.
__device__ __forceinline__ uint32_t peer_address(const void* shared, uint32_t rank) {
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address)
               : "r"(shared_address(shared)), "r"(rank));
  return address;
}

/// st.async: writes 8 bytes into a peer and counts them on the peer's barrier (both shared::cluster
/// addresses from peer_address).
__device__ __forceinline__ void store_async_8(uint32_t place, uint64_t value, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(place),
      "l"(value),
      "r"(barrier)
      : "memory");
}

}  // namespace baleen::kernels::ptx
