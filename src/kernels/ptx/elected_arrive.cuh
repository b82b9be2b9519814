#pragma once
// An arrival that gives shared memory back to the copy engine after ordinary loads from it, as in
// loaded_arrive.cuh, without a branch: all lanes call, and one of them arrives.
//
//   const uint32_t scale = load_shared_4(place);
//   barrier_arrive_elected(&empty, scale, lane == 0);   // a word of every load, combined

#include <cstdint>

#include "kernels/ptx/mbarrier.cuh"

namespace baleen::kernels::ptx {

/// mbarrier.arrive on the own block's barrier by the lane that is `elected`, once `loaded` is in
/// its register: one of two equal instructions, and `loaded` says which.
__device__ __forceinline__ void barrier_arrive_elected(Barrier* barrier,
                                                       uint32_t loaded,
                                                       bool elected) {
  asm volatile(
      "{\n"
      ".reg .pred elected, zero, other;\n"
      "setp.ne.u32 elected, %2, 0;\n"
      "setp.eq.and.u32 zero|other, %1, 0, elected;\n"
      "@zero mbarrier.arrive.shared::cta.b64 _, [%0];\n"
      "@other mbarrier.arrive.shared::cta.b64 _, [%0];\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(loaded),
      "r"(static_cast<uint32_t>(elected))
      : "memory");
}

}  // namespace baleen::kernels::ptx
