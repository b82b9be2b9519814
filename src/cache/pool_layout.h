#pragma once
// Where the bytes of a cached row lie inside its block: all value rows first, then all scale rows,
// then padding. The same numbers serve writers, readers, kernels and transfers. Pure data, any
// thread. All offsets are 64-bit bytes from the start of the pool.
//
//   BlockLayout swa = kv_block(KvFormat::kPacked, 512, 64, 256);
//   int64_t value = swa.value_offset(block, row), scales = swa.scale_offset(block, row);

#include <cstdint>

#include "base/check.h"

namespace baleen::cache {

/// kPacked: E4M3 for the dims without RoPE (one UE8M0 scale per 64), bf16 for the rotated ones. It
/// stores S8-rounded rows without loss. The raw forms hold every dim in the compute type.
enum class KvFormat : uint8_t { kPacked, kRawF64, kRawF32, kRawBf16 };

/// kFp8: E4M3, one float32 scale per 128 dims. kFp4: E2M1 pairs, one UE8M0 scale per 32 dims.
enum class IndexFormat : uint8_t { kFp8, kFp4, kRawF64, kRawF32, kRawBf16 };

inline constexpr int64_t kKvScaleDims = 64;
inline constexpr int64_t kIndexFp8ScaleDims = 128;
inline constexpr int64_t kIndexFp4ScaleDims = 32;

struct BlockLayout {
  int64_t rows = 0;             // entries of one block
  int64_t value_row_bytes = 0;  // values of one entry, contiguous
  int64_t scale_row_bytes = 0;  // scales of one entry with their padding; 0 in raw forms
  int64_t block_bytes = 0;      // stride from block to block

  int64_t value_offset(int64_t block, int64_t row) const {
    BALEEN_DCHECK(row >= 0 && row < rows, "row={} rows={}", row, rows);
    return block * block_bytes + row * value_row_bytes;
  }
  int64_t scale_offset(int64_t block, int64_t row) const {
    BALEEN_DCHECK(row >= 0 && row < rows, "row={} rows={}", row, rows);
    return block * block_bytes + rows * value_row_bytes + row * scale_row_bytes;
  }
  int64_t entry_bytes() const { return value_row_bytes + scale_row_bytes; }  // without padding
};

/// A block of KV rows. The stride is a multiple of the value row, as bulk tensor copies want it.
BlockLayout kv_block(KvFormat format, int64_t head_dim, int64_t rope_dim, int64_t rows);
/// A block of index keys.
BlockLayout index_block(IndexFormat format, int64_t index_head_dim, int64_t rows);

/// Bytes of one row of a compressor ring. Overlapping groups (kC4, indexer) keep
/// [carry value | own value | carry score | own score], the others [value | score].
int64_t overlap_ring_row_bytes(int64_t width, int64_t element_bytes = 4);
int64_t plain_ring_row_bytes(int64_t width, int64_t element_bytes = 4);
/// What a resume point keeps of an overlap row: [carry value | carry score].
int64_t carry_row_bytes(int64_t width, int64_t element_bytes = 4);

}  // namespace baleen::cache
