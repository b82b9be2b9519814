#pragma once
// Lightning top-k: the best compressed entries of every query, chosen by a total order and written
// in ascending order, so that two runs, batches or implementations give equal lists. Choice: higher
// score first; ties go to the lower entry; -0 equals +0; NaN ranks below -inf. Any thread may
// launch; the launchers allocate nothing, never wait, and are legal inside capture. Errors: a shape
// outside supports() is a programmer's error and is checked. Source: technical report, sparse
// attention, index top-k. Oracle: indexer_topk_oracle.h.
//
//   kernels::IndexerTopkParams params{.scores = scores, .score_stride = 262144, .lengths = lengths,
//       .indices = picks, .list_stride = 512, .max_entries = 262144, .num_rows = 1, .k = 512};
//   kernels::launch_indexer_topk(params, stream);

#include <cstdint>

#include "device/stream_handle.h"

namespace baleen::kernels {

struct IndexerTopkParams {
  const float* scores = nullptr;     // f32 [num_rows, score_stride], rows 16-byte aligned
  int64_t score_stride = 0;          // floats, a multiple of 4, >= max_entries
  const int32_t* lengths = nullptr;  // i32 [num_rows], valid entries; <= 0 means empty
  int32_t* indices = nullptr;        // i32 [num_rows, list_stride] entry numbers, out; may be null
  int32_t* slots = nullptr;          // i32 [num_rows, list_stride] pool rows, out; may be null
  int64_t list_stride = 0;           // >= k; places after the picks are filled with -1
  const int32_t* page_table = nullptr;  // i32 [requests, page_table_stride]; needed for `slots`
  int64_t page_table_stride = 0;        // pages
  int32_t rows_per_request = 1;         // row r reads page table row r / rows_per_request
  int32_t page_entries = 64;            // entries per page; slot = page * page_entries + rest
  int64_t max_entries = 0;              // captured maximum; no length exceeds it
  int32_t num_rows = 0;                 // 0 is legal
  int32_t k = 0;                        // 1..2048
  bool programmatic = false;            // may start before the predecessor in the stream has ended
};

/// How the row is spread: `cluster` blocks of 1,024 threads, each thread holding 4 * `vectors`
/// scores in registers; a streamed row passes through them. Follows from captured maxima alone.
struct IndexerTopkPlan {
  int32_t cluster = 1;    // 1, 2, 4, 8 or 16; streamed: 2
  int32_t vectors = 1;    // 1, 2, 4 or 8; streamed: 8
  bool streamed = false;  // k at most 1,024
};

/// True when the register path serves the shape; the portable kernel serves every shape.
bool indexer_topk_sm90_supports(int64_t max_entries, int32_t k);
IndexerTopkPlan plan_indexer_topk(int64_t max_entries, int32_t num_rows, int32_t k);

/// The register path when it serves the shape, else the portable kernel.
void launch_indexer_topk(const IndexerTopkParams& params, device::StreamHandle stream);
void launch_indexer_topk_sm90(const IndexerTopkParams& params,
                              const IndexerTopkPlan& plan,
                              device::StreamHandle stream);
/// One block per row, re-reading the row for every digit: right for any length, not quick.
void launch_indexer_topk_portable(const IndexerTopkParams& params, device::StreamHandle stream);

}  // namespace baleen::kernels
