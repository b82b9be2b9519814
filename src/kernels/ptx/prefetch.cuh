#pragma once
// prefetch.global.L2: brings the line at a global address into L2. Any address, no completion.

namespace baleen::kernels::ptx {

__device__ __forceinline__ void prefetch_l2(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global) : "memory");
}

}  // namespace baleen::kernels::ptx
