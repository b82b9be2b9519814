#pragma once
// Finishes and stores many cache rows: RMSNorm, rotation, quantisation and the write into a paged
// pool. This is the stand-alone form (prefill's window rows, tests); decode kernels call the same
// device functions (cache_entry.cuh) inside their own launches.
//
//   kernels::store_kv_rows({.rows = kv, .norm_weight = g, ...}, stream);
//   kernels::store_index_keys({.rows = keys, ...}, stream);
//
// One warp per row; a row's bits depend on nothing but the row. Slots below 0 mean "store nothing".
// Rounding points: input, normalised, rotated (and Hadamard) values are bf16. Errors: shapes
// outside the stated ones are a programmer's error (checked). Sync: none; capture-safe; zero rows
// are legal. Oracle: cache_entry_oracle.h.

#include <cstdint>

#include "device/stream_handle.h"
#include "kernels/cache_entry/cache_entry_layout.h"

namespace baleen::kernels {

struct StoreKvRowsParams {
  const float* rows = nullptr;   // f32 [num_rows, row_stride], first 512 used; 16-byte aligned
  int64_t row_stride = kKvDims;  // floats, a multiple of 4
  const float* norm_weight =
      nullptr;  // f32 [512], 16-byte aligned; null: rows are finished already
  const float* frequencies = nullptr;  // f32 [32] of the layer's table
  const int32_t* positions = nullptr;  // i32 [num_rows], token position or first of the group
  const int32_t* slots = nullptr;      // i32 [num_rows], global row of the pool or -1
  KvPoolView pool = {};                // out
  uint32_t* nan_rows = nullptr;        // u32 [1], counts rows with a NaN; null: not counted
  int32_t num_rows = 0;
  float eps = 0.0F;  // of the norm
};

struct StoreIndexKeysParams {
  const float* rows = nullptr;      // f32 [num_rows, row_stride], first 128 used; 16-byte aligned
  int64_t row_stride = kIndexDims;  // floats, a multiple of 4
  const float* norm_weight =
      nullptr;  // f32 [128], 16-byte aligned; null: rows are finished already
  const float* frequencies = nullptr;  // f32 [32]
  const int32_t* positions = nullptr;  // i32 [num_rows], first position of the group
  const int32_t* slots = nullptr;      // i32 [num_rows], global row of the pool or -1
  IndexPoolView pool = {};             // out
  uint32_t* nan_rows = nullptr;        // u32 [1], counts rows with a NaN; null: not counted
  int32_t num_rows = 0;
  float eps = 0.0F;  // of the norm
};

void store_kv_rows(const StoreKvRowsParams& params, device::StreamHandle stream);
void store_index_keys(const StoreIndexKeysParams& params, device::StreamHandle stream);

}  // namespace baleen::kernels
