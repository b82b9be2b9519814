#pragma once
// The entry of a block whose consumer warp groups are fed by one lane of the last warp group
// through a ring of stages: the barriers of the ring, the registers of the roles, and who does
// what.
//
//   Shared& shared = ptx::dynamic_shared<Shared>();   // with Barrier full[kStages], empty[kStages]
//   ptx::run_ring_roles<kConsumers, 40, 232>(
//       shared, [&] { produce(task, shared); }, [&](int group) { consume(task, shared, group); });
//
// `full` completes by the producer's bytes, `empty` when one lane of each consumer warp has
// arrived. The two register counts are those of the producer's warp group and of a consumer's
// (role_registers.cuh). Launch: (kConsumers + 1) * 128 threads, __launch_bounds__ with one block.

#include <cstdint>

#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/role_registers.cuh"

namespace baleen::kernels::ptx {

/// The block's dynamic shared memory; 1,024 bytes are what 128-byte swizzles need.
template <class Shared>
__device__ __forceinline__ Shared& dynamic_shared() {
  extern __shared__ __align__(1024) uint8_t dynamic_shared_memory[];
  return *reinterpret_cast<Shared*>(dynamic_shared_memory);
}

template <int kConsumers, int kStages>
__device__ __forceinline__ void init_ring(Barrier (&full)[kStages], Barrier (&empty)[kStages]) {
  if (threadIdx.x < kStages) {
    barrier_init(&full[threadIdx.x], 1);
    barrier_init(&empty[threadIdx.x], kConsumers * 4);
    fence_barrier_init();
  }
  __syncthreads();
}

/// `produce()` runs on one lane, `consume(group)` on every thread of the consumer warp groups.
template <int kConsumers,
          int kProducerRegisters,
          int kConsumerRegisters,
          class Shared,
          class Produce,
          class Consume>
__device__ __forceinline__ void run_ring_roles(Shared& shared, Produce produce, Consume consume) {
  init_ring<kConsumers>(shared.full, shared.empty);
  const int role = __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x) / 128, 0);
  if (role == kConsumers) {
    shrink_registers<kProducerRegisters>();
    if (threadIdx.x == kConsumers * 128) {
      produce();
    }
    return;
  }
  grow_registers<kConsumerRegisters>();
  consume(role);
}

}  // namespace baleen::kernels::ptx
