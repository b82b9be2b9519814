#include "cache/pool_layout.h"

#include "cache/pool.h"
#include "numerics/block_scale.h"

namespace baleen::cache {
namespace {

constexpr int64_t kBf16Bytes = 2;
constexpr int64_t kScaleAlignment = 8;      // bytes; keeps a row's scales in one aligned load
constexpr int64_t kIndexFp8ScaleBytes = 4;  // float32

int64_t round_up(int64_t value, int64_t multiple) {
  return numerics::ceil_div(value, multiple) * multiple;
}

BlockLayout block_of(int64_t rows, int64_t value_bytes, int64_t scale_bytes, int64_t alignment) {
  BALEEN_CHECK(rows > 0 && value_bytes > 0, "rows={} value_bytes={}", rows, value_bytes);
  BlockLayout layout;
  layout.rows = rows;
  layout.value_row_bytes = value_bytes;
  layout.scale_row_bytes = scale_bytes;
  layout.block_bytes = round_up(rows * (value_bytes + scale_bytes), alignment);
  return layout;
}

}  // namespace

const char* pool_name(Pool pool) {
  switch (pool) {
    case Pool::kSwa:
      return "swa";
    case Pool::kC4:
      return "c4";
    case Pool::kC128:
      return "c128";
    case Pool::kIndexer:
      return "indexer";
    case Pool::kC4State:
      return "c4_state";
    case Pool::kIndexerState:
      return "indexer_state";
    case Pool::kC128State:
      return "c128_state";
    case Pool::kCheckpoint:
      return "checkpoint";
    case Pool::kOpenGroup:
      return "open_group";
  }
  return "unknown";
}

BlockLayout kv_block(KvFormat format, int64_t head_dim, int64_t rope_dim, int64_t rows) {
  BALEEN_CHECK(rope_dim >= 0 && rope_dim <= head_dim, "head={} rope={}", head_dim, rope_dim);
  switch (format) {
    case KvFormat::kPacked: {
      const int64_t plain_dims = head_dim - rope_dim;
      const int64_t value_bytes = plain_dims + kBf16Bytes * rope_dim;
      const int64_t scale_bytes =
          round_up(numerics::ceil_div(plain_dims, kKvScaleDims), kScaleAlignment);
      return block_of(rows, value_bytes, scale_bytes, value_bytes);
    }
    case KvFormat::kRawF64:
      return block_of(rows, head_dim * 8, 0, 1);
    case KvFormat::kRawF32:
      return block_of(rows, head_dim * 4, 0, 1);
    case KvFormat::kRawBf16:
      return block_of(rows, head_dim * kBf16Bytes, 0, 1);
  }
  BALEEN_CHECK(false, "format={}", static_cast<int>(format));
  return {};
}

BlockLayout index_block(IndexFormat format, int64_t index_head_dim, int64_t rows) {
  switch (format) {
    case IndexFormat::kFp8:
      return block_of(rows,
                      index_head_dim,
                      kIndexFp8ScaleBytes * numerics::ceil_div(index_head_dim, kIndexFp8ScaleDims),
                      1);
    case IndexFormat::kFp4:
      return block_of(rows,
                      numerics::ceil_div(index_head_dim, 2),
                      numerics::ceil_div(index_head_dim, kIndexFp4ScaleDims),
                      1);
    case IndexFormat::kRawF64:
      return block_of(rows, index_head_dim * 8, 0, 1);
    case IndexFormat::kRawF32:
      return block_of(rows, index_head_dim * 4, 0, 1);
    case IndexFormat::kRawBf16:
      return block_of(rows, index_head_dim * kBf16Bytes, 0, 1);
  }
  BALEEN_CHECK(false, "format={}", static_cast<int>(format));
  return {};
}

int64_t overlap_ring_row_bytes(int64_t width, int64_t element_bytes) {
  return 4 * width * element_bytes;
}

int64_t plain_ring_row_bytes(int64_t width, int64_t element_bytes) {
  return 2 * width * element_bytes;
}

int64_t carry_row_bytes(int64_t width, int64_t element_bytes) {
  return 2 * width * element_bytes;
}

}  // namespace baleen::cache
