#pragma once
// Compressor of a prefill pass: pools the projected rows of every completed group and stores the
// finished entry. One launch does the softmax over the window per channel, RMSNorm, rotation at the
// group's first position, Hadamard for index keys, quantisation and the write into the paged pool.
//
//   kernels::compressor_pool_sm90({.kind = CompressorKind::kC4, .rows = projected,
//                                  .row_stride = 2048, .num_rows = tokens, ...}, stream);
//   kernels::compressor_ring_write(...);   // afterwards: it may overwrite rows read here
//
// The bits of an entry depend on its rows alone, never on the batch, on the chunk or on whether a
// row came from the pass or from the ring. Sync: none; capture-safe; zero entries are legal. The
// grid depends on max_entries; the number of entries may lie on the device. Rounding points:
// pooled, normalised, rotated (and Hadamard) values are bf16; sums are FP32, exact maximum first,
// then slot order (window of 8) or 8 runs of 16 slots, each in order, runs in order. Source:
// technical report, compressed sparse attention. Oracle: compressor_pool_oracle.h.

#include <cstdint>

#include "device/stream_handle.h"
#include "kernels/cache_entry/cache_entry_layout.h"
#include "kernels/compressor_pool/compressor_plan.h"

namespace baleen::kernels {

/// kC4: 512 channels, window of 8 with carry and own halves; kIndex: the same with 128 channels and
/// an index key as entry; kC128: 512 channels, window of 128, no halves.
enum class CompressorKind : uint8_t { kC4, kIndex, kC128 };

constexpr int32_t compressor_dims(CompressorKind kind) {
  return kind == CompressorKind::kIndex ? kIndexDims : kKvDims;
}
constexpr int32_t compressor_ratio(CompressorKind kind) {
  return kind == CompressorKind::kC128 ? 128 : 4;
}
constexpr int32_t compressor_window(CompressorKind kind) {
  return kind == CompressorKind::kC128 ? 128 : 8;
}
/// Floats of the values of one token, and of its scores: [carry | own], or [own] without overlap.
constexpr int32_t compressor_row_width(CompressorKind kind) {
  return kind == CompressorKind::kC128 ? kKvDims : 2 * compressor_dims(kind);
}

struct CompressorPoolParams {
  CompressorKind kind = CompressorKind::kC4;
  // f32 [num_rows, row_stride], 16-byte aligned: [projected values | projected scores] of one token
  const float* rows = nullptr;
  int64_t row_stride = 0;       // floats, a multiple of 4, at least 2 * row width; equal is fastest
  int32_t num_rows = 0;         // of the pass
  const float* ape = nullptr;   // f32 [ratio, row width] added to scores of the pass; null: is in
  const float* ring = nullptr;  // f32 [ring rows, 2 * row width], values then scores with ape in;
                                // may be null when every row comes from the pass
  int32_t ring_size = 0;        // rows of one request or page
  const CompressorPlanEntry* plan = nullptr;  // [max_entries]
  const int32_t* num_entries = nullptr;       // i32 [1] on the device; null: max_entries
  int32_t max_entries = 0;
  const float* norm_weight = nullptr;  // f32 [dims], 16-byte aligned
  const float* frequencies = nullptr;  // f32 [32] of the compressed table
  float eps = 0.0F;                    // of the norm
  KvPoolView kv_pool;                  // out, kC4 and kC128
  IndexPoolView index_pool;            // out, kIndex
  float* pooled = nullptr;  // f32 [max_entries, dims], out: values before bf16; null: not kept
};

/// H100, H200. `blocks_per_entry` (kC128 alone): 1, or 8 blocks of a cluster share an entry; 0
/// chooses by max_entries. It changes no bit.
void compressor_pool_sm90(const CompressorPoolParams& params,
                          device::StreamHandle stream,
                          int32_t blocks_per_entry = 0);

/// Any GPU. The same bits.
void compressor_pool_portable(const CompressorPoolParams& params, device::StreamHandle stream);

struct CompressorRingParams {
  CompressorKind kind = CompressorKind::kC4;
  const float* rows = nullptr;             // as above
  int64_t row_stride = 0;                  // as above
  const float* ape = nullptr;              // as above
  float* ring = nullptr;                   // out; 16-byte aligned
  const RingWriteEntry* writes = nullptr;  // [max_writes]
  const int32_t* num_writes = nullptr;     // i32 [1] on the device; null: max_writes
  int32_t max_writes = 0;
};

/// Copies projected rows into the rings, position bias added once. Any GPU. After the pool of the
/// same pass: a write may overwrite the row that lay ring_size positions before.
void compressor_ring_write(const CompressorRingParams& params, device::StreamHandle stream);

}  // namespace baleen::kernels
