#pragma once
// cp.async of 8 bytes global -> shared; zero-fills what lies beyond `valid_bytes` (0 or 8). Both
// addresses 8-byte aligned; completes with the thread's cp.async groups (bulk_copy.cuh).

#include <cstdint>

#include "kernels/ptx/mbarrier.cuh"

namespace baleen::kernels::ptx {

__device__ __forceinline__ void async_copy_8(void* shared,
                                             const void* global,
                                             uint32_t valid_bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(shared)),
               "l"(global),
               "r"(valid_bytes)
               : "memory");
}

}  // namespace baleen::kernels::ptx
