#pragma once
// ld.global.nc: loads of data that nothing writes while the kernel runs, past L1. Volatile, so that
// loads issued before a dependency wait stay before it.
//
//   float4 w = ptx::load_static(weight + 4 * lane);   // 16-byte aligned

#include <cstdint>

namespace baleen::kernels::ptx {

__device__ __forceinline__ float4 load_static(const float* global) {
  float4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "l"(global));
  return value;
}

/// Two floats, 8-byte aligned.
__device__ __forceinline__ float2 load_static_two(const float* global) {
  float2 value;
  asm volatile("ld.global.nc.L1::no_allocate.v2.f32 {%0, %1}, [%2];"
               : "=f"(value.x), "=f"(value.y)
               : "l"(global));
  return value;
}

/// The same as integers, for data that is not floats.
__device__ __forceinline__ uint4 load_static_16(const uint4* global) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(global));
  return value;
}

/// One byte.
__device__ __forceinline__ uint32_t load_static_byte(const uint8_t* global) {
  uint32_t value;
  asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(value) : "l"(global));
  return value;
}

/// 16 bytes that a kernel before this one may have written; keeps its place among volatile loads.
__device__ __forceinline__ uint4 load_fresh_16(const uint4* global) {
  uint4 value;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(global)
               : "memory");
  return value;
}

/// One float, 4-byte aligned.
__device__ __forceinline__ float load_static_one(const float* global) {
  float value;
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(value) : "l"(global));
  return value;
}

}  // namespace baleen::kernels::ptx
