#pragma once
// Reads of a peer's shared memory by its shared::cluster address (cluster.cuh: peer_address). The
// peer must have written and passed a cluster barrier, and must not end before the read is done.
//
//   float4 o = load_peer_float4(peer_address(place, rank));   // 16-byte aligned

#include <cstdint>

namespace baleen::kernels::ptx {

__device__ __forceinline__ float load_peer_float(uint32_t address) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}

__device__ __forceinline__ float4 load_peer_float4(uint32_t address) {
  float4 value;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

}  // namespace baleen::kernels::ptx
