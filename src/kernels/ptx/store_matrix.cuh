#pragma once
// stmatrix with transposition: a warp stores 8 x 8 tiles of 16-bit values from the register layout
// of tensor accumulators. In tile i lane l holds (row l / 4, columns 2 * (l % 4) and + 1), the
// lower column in the low half. Lane 8 * i + c gives the 16-byte aligned shared address at which
// the eight rows of column c of tile i are written. All 32 lanes execute it.
//
//   store_columns_x4(address, tile0, tile1, tile2, tile3);

#include <cstdint>

namespace baleen::kernels::ptx {

/// stmatrix.x4.trans
__device__ __forceinline__ void store_columns_x4(
    uint32_t address, uint32_t tile0, uint32_t tile1, uint32_t tile2, uint32_t tile3) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
      "r"(tile0),
      "r"(tile1),
      "r"(tile2),
      "r"(tile3)
      : "memory");
}

/// stmatrix.x2.trans: lanes 0 to 15 give addresses.
__device__ __forceinline__ void store_columns_x2(uint32_t address, uint32_t tile0, uint32_t tile1) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address),
               "r"(tile0),
               "r"(tile1)
               : "memory");
}

}  // namespace baleen::kernels::ptx
