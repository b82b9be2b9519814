#pragma once
// Tiled copies by the tensor copy engine (TMA). The map is a `const __grid_constant__ CUtensorMap`
// kernel parameter; coordinates count elements, the innermost first.
//
//   prefetch_tensor_map(&map);
//   barrier_expect_bytes(&full, tile_bytes);
//   tensor_load_2d(tile, &map, column, row, &full);

#include <cstdint>

#include <cuda.h>

#include "kernels/ptx/mbarrier.cuh"

namespace baleen::kernels::ptx {

__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

__device__ __forceinline__ void tensor_load_2d(
    void* shared, const CUtensorMap* map, int32_t inner, int32_t outer, Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(shared)),
      "l"(map),
      "r"(shared_address(barrier)),
      "r"(inner),
      "r"(outer)
      : "memory");
}

__device__ __forceinline__ void tensor_load_3d(void* shared,
                                               const CUtensorMap* map,
                                               int32_t inner,
                                               int32_t middle,
                                               int32_t outer,
                                               Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(shared)),
      "l"(map),
      "r"(shared_address(barrier)),
      "r"(inner),
      "r"(middle),
      "r"(outer)
      : "memory");
}

/// The same with an L2 policy.
__device__ __forceinline__ void tensor_load_2d(void* shared,
                                               const CUtensorMap* map,
                                               int32_t inner,
                                               int32_t outer,
                                               Barrier* barrier,
                                               uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(shared)),
      "l"(map),
      "r"(shared_address(barrier)),
      "r"(inner),
      "r"(outer),
      "l"(policy)
      : "memory");
}

__device__ __forceinline__ void tensor_load_3d(void* shared,
                                               const CUtensorMap* map,
                                               int32_t inner,
                                               int32_t middle,
                                               int32_t outer,
                                               Barrier* barrier,
                                               uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(shared)),
      "l"(map),
      "r"(shared_address(barrier)),
      "r"(inner),
      "r"(middle),
      "r"(outer),
      "l"(policy)
      : "memory");
}

}  // namespace baleen::kernels::ptx
