#pragma once
// Barriers in shared memory that count arrivals and bytes of asynchronous copies (PTX mbarrier,
// block scope). One thread initialises; `fence_barrier_init` and a block barrier come before first
// use. A wait that lasts longer than about two seconds traps: a wrong count must not hang the card.
//
//   if (threadIdx.x == 0) { barrier_init(&full, 1); fence_barrier_init(); }
//   __syncthreads();
//   if (threadIdx.x == 0) { barrier_expect_bytes(&full, bytes); bulk_load(...); }
//   barrier_wait(&full, phase);

#include <cstdint>

namespace baleen::kernels::ptx {

using Barrier = uint64_t;  // 8-byte aligned, in shared memory

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// mbarrier.init: a phase completes after `arrivals` arrivals and all expected bytes.
__device__ __forceinline__ void barrier_init(Barrier* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}

/// Makes initialised barriers visible to the copy engine and to the other blocks of the cluster.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// mbarrier.arrive on the own block's barrier.
__device__ __forceinline__ void barrier_arrive(Barrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

/// mbarrier.arrive on the barrier at the same place in block `rank` of the cluster.
__device__ __forceinline__ void barrier_arrive_remote(Barrier* barrier, uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}

/// One arrival that also adds `bytes` to what the phase waits for.
__device__ __forceinline__ void barrier_expect_bytes(Barrier* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}

/// True when the phase of parity `parity` has completed; may suspend the thread for a short while.
__device__ __forceinline__ bool barrier_try_wait(Barrier* barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

/// The same for a thread that has nothing else to do: it may be suspended for milliseconds.
__device__ __forceinline__ bool barrier_try_wait_long(Barrier* barrier, uint32_t parity) {
  constexpr uint32_t kNanoseconds = 10'000'000;
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2, %3;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity), "r"(kNanoseconds)
      : "memory");
  return done != 0;
}

/// The same with acquire at cluster scope, for barriers that other blocks arrive on.
__device__ __forceinline__ bool barrier_try_wait_cluster(Barrier* barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

inline constexpr int64_t kTrapAfterClocks = 4'000'000'000;  // about two seconds at 1.98 GHz

template <class Ready>
__device__ __forceinline__ void wait_or_trap(Ready ready) {
  if (ready()) {
    return;
  }
  const int64_t begin = clock64();
  while (!ready()) {
    if (clock64() - begin > kTrapAfterClocks) {
      __trap();
    }
  }
}

__device__ __forceinline__ void barrier_wait(Barrier* barrier, uint32_t parity) {
  wait_or_trap([&] { return barrier_try_wait(barrier, parity); });
}

__device__ __forceinline__ void barrier_wait_cluster(Barrier* barrier, uint32_t parity) {
  wait_or_trap([&] { return barrier_try_wait_cluster(barrier, parity); });
}

/// Orders ordinary shared-memory writes before later reads by the tensor cores or the copy engine.
__device__ __forceinline__ void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// bar.sync on one of the 16 named barriers for `threads` threads (a multiple of 32).
__device__ __forceinline__ void named_barrier_sync(uint32_t id, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void named_barrier_arrive(uint32_t id, uint32_t threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace baleen::kernels::ptx
