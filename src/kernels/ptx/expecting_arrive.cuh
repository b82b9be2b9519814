#pragma once
// An arrival at a barrier of another block of the cluster that says how many bytes of stores that
// count there (st.async) belong to it. The stores may land before or after it.
//
//   store_async_8(place, value, full);                          // several; both addresses by
//   arrive_at_peer_expecting(peer_address(&barrier, 0), 8 * n); // peer_address

#include <cstdint>

namespace baleen::kernels::ptx {

/// mbarrier.arrive.expect_tx, relaxed: it orders nothing but those stores. `barrier` is a
/// shared::cluster address.
__device__ __forceinline__ void arrive_at_peer_expecting(uint32_t barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [%0], %1;" ::"r"(barrier),
      "r"(bytes)
      : "memory");
}

}  // namespace baleen::kernels::ptx
