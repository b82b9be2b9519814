#pragma once
// Warp-group tensor products (wgmma): fences, groups and shared-memory descriptors. A warp group is
// four consecutive warps whose first index is a multiple of four; all of them execute each call.
//
//   float acc[32];                                       // m64n64: row = 16*warp + lane/4 (+8),
//   ... wgmma_fence();                                       // accumulators and register A were
//   touched Wgmma<E4m3, 64>::shared(acc, a_descriptor, b_descriptor, /*accumulate=*/0);
//   wgmma_commit();
//   wgmma_wait<0>();
//
// Accumulator d[4 * j + r] of lane l in warp w is row 16*w + l/4 + 8*(r/2), column 8*j + 2*(l%4) +
// r%2. Register A of lane l: a[0] row 16*w + l/4, a[1] the same + 8, a[2] and a[3] the same rows in
// the upper half of K; each register holds consecutive k (bf16: 2 from 2*(l%4), e4m3: 4 from
// 4*(l%4)).

#include <cstdint>

#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/wgmma_shapes.cuh"

namespace baleen::kernels::ptx {

enum class Swizzle : uint64_t { kNone = 0, k128 = 1, k64 = 2, k32 = 3 };

/// Descriptor of a tile in shared memory. With K contiguous ("K-major") and 128-byte swizzle a tile
/// is made of atoms of 8 rows x 128 bytes (1,024 bytes, 1,024-byte aligned): `stride_bytes` is the
/// distance of atoms along rows (1,024 when packed), `leading_bytes` is unused; the next K group is
/// the same descriptor advanced by 32 bytes. Without swizzle the atom is 8 rows x 16 bytes (128
/// bytes contiguous): `leading_bytes` is the distance of atoms along K, `stride_bytes` along rows.
__device__ __forceinline__ uint64_t make_descriptor(uint32_t address,
                                                    uint32_t leading_bytes,
                                                    uint32_t stride_bytes,
                                                    Swizzle swizzle) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) |
         (static_cast<uint64_t>((leading_bytes & 0x3FFFF) >> 4) << 16) |
         (static_cast<uint64_t>((stride_bytes & 0x3FFFF) >> 4) << 32) |
         (static_cast<uint64_t>(swizzle) << 62);
}

/// K-major tile with rows of 128 bytes in 128-byte swizzle, packed.
__device__ __forceinline__ uint64_t k_major_descriptor(const void* shared) {
  return make_descriptor(shared_address(shared), 16, 1024, Swizzle::k128);
}

/// Moves a descriptor by `bytes` (a multiple of 16).
__device__ __forceinline__ uint64_t advance_descriptor(uint64_t descriptor, uint32_t bytes) {
  return descriptor + (bytes >> 4);
}

/// Byte offset of (row, byte column) in a K-major tile of 128-byte rows with 128-byte swizzle: the
/// 16-byte chunk index is exchanged with the row's low three bits.
__host__ __device__ __forceinline__ uint32_t swizzled_128(uint32_t row, uint32_t byte) {
  return row * 128 + (((byte >> 4) ^ (row & 7)) << 4) + (byte & 15);
}

/// Before the first product and whenever registers it reads or accumulates were changed.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// Waits until at most `Pending` committed groups are unfinished.
template <int Pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

/// Keeps the compiler from moving accesses of `value` across this point, around asynchronous
/// products.
template <int Count>
__device__ __forceinline__ void pin_registers(float (&values)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) {
    asm volatile("" : "+f"(values[i])::"memory");
  }
}

}  // namespace baleen::kernels::ptx
