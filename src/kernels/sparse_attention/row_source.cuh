#pragma once
// Finds cached rows: slot of a query's list or entry of its pages -> global row -> addresses in the
// pool. Device functions of one thread; a missing row is -1 and is never turned into an address.
//
//   int32_t row = source_row(source, query, slot, source_length(source, query));
//   if (row >= 0) { RowAddress at = row_address(source.pool, row); ... }

#include <cstdint>

#include "kernels/sparse_attention/sparse_attention.h"

namespace baleen::kernels {

struct RowAddress {
  const uint8_t* values;  // 576 bytes, 16-byte aligned
  const uint8_t* scales;  // 8 bytes
};

__device__ __forceinline__ int32_t source_length(const SparseAttentionSource& source,
                                                 int32_t query) {
  if (source.rows == nullptr && source.pages == nullptr) {
    return 0;
  }
  const int32_t length = source.lengths != nullptr ? source.lengths[query] : source.capacity;
  return length > 0 ? length : 0;
}

/// What the list or the page table says of a slot; -1 beyond the length. entry_row makes a row of
/// it.
__device__ __forceinline__ int32_t source_entry(const SparseAttentionSource& source,
                                                int32_t query,
                                                int32_t slot,
                                                int32_t length) {
  if (slot >= length) {
    return -1;
  }
  if (source.rows != nullptr) {
    return __ldg(source.rows + query * source.stride + slot);
  }
  const int32_t shift = __ffs(source.entries_per_page) - 1;
  return __ldg(source.pages + query * source.stride + (slot >> shift));
}

__device__ __forceinline__ int32_t entry_row(const SparseAttentionSource& source,
                                             int32_t slot,
                                             int32_t entry) {
  if (entry < 0 || source.rows != nullptr) {
    return entry;
  }
  const int32_t shift = __ffs(source.entries_per_page) - 1;
  return (entry << shift) + (slot & (source.entries_per_page - 1));
}

__device__ __forceinline__ int32_t source_row(const SparseAttentionSource& source,
                                              int32_t query,
                                              int32_t slot,
                                              int32_t length) {
  return entry_row(source, slot, source_entry(source, query, slot, length));
}

__device__ __forceinline__ RowAddress row_address(const KvPoolView& pool, int32_t row) {
  const int32_t per_page = pool.rows_per_page;
  const int32_t page =
      (per_page & (per_page - 1)) == 0 ? row >> (__ffs(per_page) - 1) : row / per_page;
  const int32_t in_page = row - page * per_page;
  const uint8_t* base = pool.base + page * pool.page_bytes;
  return {base + in_page * kKvValueBytes,
          base + per_page * kKvValueBytes + in_page * kKvScaleBytes};
}

}  // namespace baleen::kernels
