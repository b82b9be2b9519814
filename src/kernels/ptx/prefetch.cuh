#pragma once
// prefetch.global.L2: asks for the line of an address, any alignment; nothing is waited for.
//
//   prefetch_l2(rows + thread * 128);

namespace baleen::kernels::ptx {

__device__ __forceinline__ void prefetch_l2(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

}  // namespace baleen::kernels::ptx
