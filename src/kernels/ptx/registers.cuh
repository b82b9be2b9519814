#pragma once
// setmaxnreg: moves registers between warp groups. Needs __launch_bounds__(threads, 1) on the
// kernel, counts that are multiples of 8 in 24..256, and every warp of the group executing it.

namespace baleen::kernels::ptx {

template <int Count>
__device__ __forceinline__ void raise_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}

template <int Count>
__device__ __forceinline__ void lower_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}

}  // namespace baleen::kernels::ptx
