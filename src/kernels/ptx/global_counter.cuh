#pragma once
// Counters in global memory that hand data from one block to another (device scope). What a block
// wrote before an ordered addition, and a block barrier before that, is visible to whoever sees the
// new value by an acquiring read.
//
//   __syncthreads(); if (threadIdx.x == 0) { add_release(ready, 1); }
//   ... wait until load_acquire(ready) == expected, then a block barrier, then read with __ldcg.

#include <cstdint>

namespace baleen::kernels::ptx {

/// red.release.gpu: no value comes back.
__device__ __forceinline__ void add_release(int32_t* counter, int32_t value) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}

/// red.relaxed.gpu.inc: one more, or zero after `most`; no value comes back, orders nothing.
__device__ __forceinline__ void increase_or_wrap(int32_t* counter, int32_t most) {
  asm volatile("red.relaxed.gpu.global.inc.u32 [%0], %1;" ::"l"(counter), "r"(most) : "memory");
}

/// atom.acq_rel.gpu: the value before the addition.
__device__ __forceinline__ int32_t add_acquire_release(int32_t* counter, int32_t value) {
  int32_t old;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(counter), "r"(value)
               : "memory");
  return old;
}

/// atom.relaxed.gpu: hands out numbers, orders nothing.
__device__ __forceinline__ int32_t add_relaxed(int32_t* counter, int32_t value) {
  int32_t old;
  asm volatile("atom.relaxed.gpu.global.add.s32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(counter), "r"(value));
  return old;
}

__device__ __forceinline__ int32_t load_acquire(const int32_t* counter) {
  int32_t value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}

}  // namespace baleen::kernels::ptx
