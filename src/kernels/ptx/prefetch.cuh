#pragma once
// Asks for global memory in L2; nothing is waited for.
//
//   prefetch_l2(rows + thread * 64);         // prefetch.global.L2: 64 bytes, any alignment
//   prefetch_l2_bulk(q, 4096);               // by the copy engine: 16-byte aligned, a multiple of
//   16

#include <cstdint>

namespace baleen::kernels::ptx {

__device__ __forceinline__ void prefetch_l2(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

/// cp.async.bulk.prefetch.L2
__device__ __forceinline__ void prefetch_l2_bulk(const void* global, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}

}  // namespace baleen::kernels::ptx
