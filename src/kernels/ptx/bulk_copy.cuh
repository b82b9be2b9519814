#pragma once
// One-dimensional copies by the bulk copy engine, and 16-byte asynchronous copies. Addresses are
// 16-byte aligned and byte counts are multiples of 16. Bulk copies complete on an mbarrier.
//
//   barrier_expect_bytes(&full, 8192);
//   bulk_load(tile, source, 8192, &full, kEvictFirst);

#include <cstdint>

#include "kernels/ptx/mbarrier.cuh"

namespace baleen::kernels::ptx {

// Encodings of createpolicy for fractional L2 policies with fraction 1.
inline constexpr uint64_t kEvictNormal = 0x1000000000000000;
inline constexpr uint64_t kEvictFirst = 0x12F0000000000000;
inline constexpr uint64_t kEvictLast = 0x14F0000000000000;

/// cp.async.bulk global -> own shared memory.
__device__ __forceinline__ void bulk_load(void* shared,
                                          const void* global,
                                          uint32_t bytes,
                                          Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(shared)),
      "l"(global),
      "r"(bytes),
      "r"(shared_address(barrier))
      : "memory");
}

/// The same with an L2 policy (kEvictFirst for weights that are read once).
__device__ __forceinline__ void bulk_load(
    void* shared, const void* global, uint32_t bytes, Barrier* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1], %2, [%3], %4;" ::"r"(shared_address(shared)),
      "l"(global),
      "r"(bytes),
      "r"(shared_address(barrier)),
      "l"(policy)
      : "memory");
}

/// cp.async.bulk own shared memory -> shared memory of block `rank` of the cluster, completing on
/// that block's barrier at the same offset as `barrier`.
__device__ __forceinline__ void bulk_copy_to_peer(
    void* peer_place, const void* shared, uint32_t bytes, Barrier* barrier, uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 to, at;\n"
      "mapa.shared::cluster.u32 to, %0, %4;\n"
      "mapa.shared::cluster.u32 at, %3, %4;\n"
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [to], [%1], %2, "
      "[at];\n"
      "}" ::"r"(shared_address(peer_place)),
      "r"(shared_address(shared)),
      "r"(bytes),
      "r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}

/// cp.async 16 bytes global -> shared past L1; zero-fills what lies beyond `valid_bytes` (0..16).
__device__ __forceinline__ void async_copy_16(void* shared,
                                              const void* global,
                                              uint32_t valid_bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
               "l"(global),
               "r"(valid_bytes)
               : "memory");
}

__device__ __forceinline__ void async_copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int Pending>
__device__ __forceinline__ void async_copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

/// The barrier gets one arrival when all earlier cp.async of this thread have landed; the arrival
/// is part of the count given at init.
__device__ __forceinline__ void async_copy_arrive(Barrier* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

}  // namespace baleen::kernels::ptx
