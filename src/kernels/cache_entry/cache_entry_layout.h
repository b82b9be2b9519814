#pragma once
// Where the bytes of one cached row lie inside the block ("page") of its pool, for every kernel
// that writes or reads one. Pure data and inline arithmetic for host and device, any thread. A row
// is addressed by its global number page * rows_per_page + row; -1 is "no row" and must not get
// here.
//
//   KvPoolView pool{.base = bytes, .page_bytes = 37440, .rows_per_page = 64};
//   uint8_t* values = pool.base + kv_value_offset(pool, row);   // 576 bytes: 448 e4m3, 64 bf16
//   uint8_t* scales = pool.base + kv_scale_offset(pool, row);   // 8 bytes: 7 UE8M0, one zero
//
// A page holds all value rows, then all scale rows, then padding. The cache states the same numbers
// in its own terms (cache/pool_layout.h); a test of the kernels' users holds the two equal.

#include <cstdint>

#include "numerics/host_device.h"

namespace baleen::kernels {

inline constexpr int32_t kKvDims = 512;                        // one row is key and value
inline constexpr int32_t kKvRopeDims = 64;                     // the last dims, stored as bf16
inline constexpr int32_t kKvNopeDims = kKvDims - kKvRopeDims;  // stored as e4m3
inline constexpr int32_t kKvScaleDims = 64;                    // nope dims that share a scale
inline constexpr int32_t kKvScales = kKvNopeDims / kKvScaleDims;
inline constexpr int32_t kKvValueBytes = kKvNopeDims + 2 * kKvRopeDims;  // 576
inline constexpr int32_t kKvScaleBytes = 8;                              // 7 scales and a zero
inline constexpr int32_t kRopePairs = kKvRopeDims / 2;                   // frequencies of a table

inline constexpr int32_t kIndexDims = 128;
inline constexpr int32_t kIndexRopeDims = 64;  // the last dims
inline constexpr int32_t kIndexFp4Group = 32;  // dims that share an E2M1 scale

static_assert(kKvValueBytes == 576 && kKvScales == 7);

/// Bytes from page to page of a KV pool: a multiple of the value row, as bulk tensor copies want
/// it.
BALEEN_HOST_DEVICE constexpr int64_t kv_page_bytes(int64_t rows_per_page) {
  return (rows_per_page * (kKvValueBytes + kKvScaleBytes) + kKvValueBytes - 1) / kKvValueBytes *
         kKvValueBytes;
}

struct KvPoolView {
  uint8_t* base = nullptr;    // 16-byte aligned
  int64_t page_bytes = 0;     // bytes from page to page, a multiple of 16
  int32_t rows_per_page = 0;  // P
};

BALEEN_HOST_DEVICE inline int64_t kv_value_offset(const KvPoolView& pool, int32_t row) {
  const int32_t page = row / pool.rows_per_page;
  return page * pool.page_bytes +
         static_cast<int64_t>(row - page * pool.rows_per_page) * kKvValueBytes;
}
BALEEN_HOST_DEVICE inline int64_t kv_scale_offset(const KvPoolView& pool, int32_t row) {
  const int32_t page = row / pool.rows_per_page;
  return page * pool.page_bytes + static_cast<int64_t>(pool.rows_per_page) * kKvValueBytes +
         static_cast<int64_t>(row - page * pool.rows_per_page) * kKvScaleBytes;
}

/// kFp4InFp8: keys rounded to E2M1 groups of 32, stored as e4m3 with one float32 scale, without
/// loss while the four group exponents differ by at most 14. kFp4: the same keys as E2M1 pairs (low
/// nibble = even dim) with four UE8M0. kFp8: keys rounded to e4m3 with one power-of-two scale.
enum class IndexKeyFormat : uint8_t { kFp4InFp8, kFp4, kFp8 };

BALEEN_HOST_DEVICE constexpr int32_t index_value_bytes(IndexKeyFormat format) {
  return format == IndexKeyFormat::kFp4 ? kIndexDims / 2 : kIndexDims;
}
inline constexpr int32_t kIndexScaleBytes = 4;  // one float32, or four UE8M0

BALEEN_HOST_DEVICE constexpr int64_t index_page_bytes(IndexKeyFormat format,
                                                      int64_t rows_per_page) {
  return rows_per_page * (index_value_bytes(format) + kIndexScaleBytes);
}

struct IndexPoolView {
  uint8_t* base = nullptr;    // 16-byte aligned
  int64_t page_bytes = 0;     // bytes from page to page, a multiple of 4
  int32_t rows_per_page = 0;  // P
  IndexKeyFormat format = IndexKeyFormat::kFp4InFp8;
};

BALEEN_HOST_DEVICE inline int64_t index_value_offset(const IndexPoolView& pool, int32_t row) {
  const int32_t page = row / pool.rows_per_page;
  return page * pool.page_bytes +
         static_cast<int64_t>(row - page * pool.rows_per_page) * index_value_bytes(pool.format);
}
BALEEN_HOST_DEVICE inline int64_t index_scale_offset(const IndexPoolView& pool, int32_t row) {
  const int32_t page = row / pool.rows_per_page;
  return page * pool.page_bytes +
         static_cast<int64_t>(pool.rows_per_page) * index_value_bytes(pool.format) +
         static_cast<int64_t>(row - page * pool.rows_per_page) * kIndexScaleBytes;
}

}  // namespace baleen::kernels
