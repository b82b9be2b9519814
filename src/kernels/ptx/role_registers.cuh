#pragma once
// Registers moved between the warp groups of a block (setmaxnreg), and the waits that go with them.
// The launch gives every thread the same count, 65,536 / threads rounded down to a multiple of 8
// (__launch_bounds__(threads, 1)); each warp group then states its own, all groups together at most
// the same total. A group's role must end in its own branch: where roles meet again the compiler
// needs the smallest count.
//
//   if (group == 3) { ptx::shrink_registers<40>(); ... return; }
//   ptx::grow_registers<168>();
//   ptx::barrier_wait_or_leave(&full, phase);
//
// A trap inside a loop that could go on after it makes the compiler give every role the launch's
// count without a word, so these waits leave their loop behind the trap.

#include <cstdint>

#include "kernels/ptx/mbarrier.cuh"

namespace baleen::kernels::ptx {

/// setmaxnreg.inc: waits until the block has given that many back. A multiple of 8, 24 to 256.
template <int Registers>
__device__ __forceinline__ void grow_registers() {
  static_assert(Registers % 8 == 0 && Registers >= 24 && Registers <= 256);
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

/// setmaxnreg.dec
template <int Registers>
__device__ __forceinline__ void shrink_registers() {
  static_assert(Registers % 8 == 0 && Registers >= 24 && Registers <= 256);
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

template <class Ready>
__device__ __forceinline__ void wait_or_leave(Ready ready) {
  if (ready()) {
    return;
  }
  const int64_t begin = clock64();
  while (!ready()) {
    if (clock64() - begin > kTrapAfterClocks) {
      __trap();
      return;
    }
  }
}

__device__ __forceinline__ void barrier_wait_or_leave(Barrier* barrier, uint32_t parity) {
  wait_or_leave([&] { return barrier_try_wait(barrier, parity); });
}

__device__ __forceinline__ void barrier_wait_cluster_or_leave(Barrier* barrier, uint32_t parity) {
  wait_or_leave([&] { return barrier_try_wait_cluster(barrier, parity); });
}

}  // namespace baleen::kernels::ptx
