#pragma once
// A 64-bit word in global memory that several blocks change and watch (device scope), ordered like
// the counters of global_counter.cuh.
//
//   const uint64_t before = add_acquire_release_64(&word, 1);

#include <cstdint>

namespace baleen::kernels::ptx {

/// atom.acq_rel.gpu.add: the value before.
__device__ __forceinline__ uint64_t add_acquire_release_64(uint64_t* word, uint64_t value) {
  uint64_t old;
  asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;"
               : "=l"(old)
               : "l"(word), "l"(value)
               : "memory");
  return old;
}

/// atom.acq_rel.gpu.or: the value before.
__device__ __forceinline__ uint64_t or_acquire_release_64(uint64_t* word, uint64_t bits) {
  uint64_t old;
  asm volatile("atom.acq_rel.gpu.global.or.b64 %0, [%1], %2;"
               : "=l"(old)
               : "l"(word), "l"(bits)
               : "memory");
  return old;
}

__device__ __forceinline__ uint64_t load_acquire_64(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

}  // namespace baleen::kernels::ptx
