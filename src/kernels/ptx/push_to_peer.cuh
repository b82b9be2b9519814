#pragma once
// st.async: a store of floats into the shared memory of another block of the cluster that counts
// its bytes on a barrier of that block. One way, no reply: the receiver waits on its own barrier.
// Both addresses are shared::cluster addresses (peer_address); `place` is aligned to the size
// written.
//
//   const uint32_t place = peer_address(&inbox[rank], peer), full = peer_address(&barrier, peer);
//   push_float4(place, value, full);

#include <cstdint>

namespace baleen::kernels::ptx {

__device__ __forceinline__ void push_float4(uint32_t place, float4 value, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(place),
      "r"(__float_as_uint(value.x)),
      "r"(__float_as_uint(value.y)),
      "r"(__float_as_uint(value.z)),
      "r"(__float_as_uint(value.w)),
      "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void push_float(uint32_t place, float value, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(place),
      "r"(__float_as_uint(value)),
      "r"(barrier)
      : "memory");
}

}  // namespace baleen::kernels::ptx
