#pragma once
// An arrival that gives shared memory back to the copy engine after ordinary loads from it. The
// arrival itself does not wait for loads: it overtakes those that still queue in the load unit
// (behind cp.async or scattered loads of other warps), and the next copy may land before they read.
// So what was loaded has to decide something about it.
//
//   const uint4 codes = load_shared_16(stage);
//   __syncwarp();
//   if (lane == 0) { barrier_arrive_loaded(&empty, codes.x); }   // a word of every load, combined

#include <cstdint>

#include "kernels/ptx/mbarrier.cuh"

namespace baleen::kernels::ptx {

/// mbarrier.arrive on the own block's barrier, once `loaded` is in its register: one of two equal
/// instructions, and `loaded` says which. `loaded` combines one word of every load from the place
/// that is given back (a load of 16 bytes fills its four registers together). The warp's lanes have
/// met since their loads; a load instruction is one for all of them, so one lane's words do.
__device__ __forceinline__ void barrier_arrive_loaded(Barrier* barrier, uint32_t loaded) {
  asm volatile(
      "{\n"
      ".reg .pred zero;\n"
      "setp.eq.u32 zero, %1, 0;\n"
      "@zero mbarrier.arrive.shared::cta.b64 _, [%0];\n"
      "@!zero mbarrier.arrive.shared::cta.b64 _, [%0];\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(loaded)
      : "memory");
}

}  // namespace baleen::kernels::ptx
