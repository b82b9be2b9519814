#pragma once
// Lightning indexer: the score of every compressed entry for every query, from a paged FP8 cache.
//   score(q, s) = scale_s * sum over 64 heads h of a_{q,h} * max(0, <Q_{q,h}, K_s>)
// Dots run on the FP8 tensor cores (products exact, four instructions of 32 dims each, in order);
// the head sum is FP32 in one order for every batch, query count and split, so a score never
// depends on its neighbours. Queries of one request share one reading of its keys. Any thread may
// launch; the launcher allocates nothing, never waits, and is legal inside capture. The split over
// blocks follows from the lengths and is made on the device. Errors: a shape outside the limits
// below is a programmer's error and is checked. Source: technical report, lightning indexer.
// Oracle: indexer_scores_oracle.h.
//
//   kernels::IndexerScoresParams params{.queries = q, .head_weights = a, .key_pages = pages, ...};
//   kernels::launch_indexer_scores(params, stream);

#include <cstdint>

#include "device/stream_handle.h"

namespace baleen::kernels {

inline constexpr int64_t kScoreHeads = 64;
inline constexpr int64_t kScoreDims = 128;
inline constexpr int64_t kIndexPageEntries = 64;
/// 64 rows of 128 e4m3 codes, then 64 FP32 scales.
inline constexpr int64_t kIndexPageBytes = kIndexPageEntries * (kScoreDims + 4);
inline constexpr int32_t kIndexMaxQueries = 6;  // per request: drafted tokens of a verify step

enum class ScoreRounding { kFloat, kBf16 };  // of the final score only

/// Row = request * queries_per_request + query.
struct IndexerScoresParams {
  const uint8_t* queries = nullptr;     // e4m3 [rows, 64, 128], 16-byte aligned
  const float* head_weights = nullptr;  // f32 [rows, 64], constants and query scale included
  const uint8_t* key_pages = nullptr;   // [num_pages] pages of kIndexPageBytes, 16-byte aligned
  int64_t num_pages = 0;                // of the pool
  const int32_t* page_table = nullptr;  // i32 [num_requests, page_table_stride]
  int64_t page_table_stride = 0;        // pages; 64 * stride covers every length
  const int32_t* lengths = nullptr;     // i32 [rows]: entries this query sees; <= 0 sees none
  /// i32 [num_requests], may be null: entries below it, and `lengths` and `page_table`, were
  /// written by no kernel that may still run when this one starts (none of this step). Their keys
  /// are then fetched ahead of the predecessor's end in a programmatic launch.
  const int32_t* stable_entries = nullptr;
  /// f32 [rows, score_stride], out. A request's pages that any of its queries sees are written
  /// whole, with -inf at and beyond the query's length; nothing else is written.
  float* scores = nullptr;
  int64_t score_stride = 0;  // floats, a multiple of 64
  int32_t num_requests = 0;  // 0 is legal; at most 4,096
  int32_t queries_per_request = 1;
  ScoreRounding rounding = ScoreRounding::kFloat;
  bool programmatic = false;  // may start before the predecessor in the stream has ended
};

/// How the work is laid on the card; follows from captured maxima alone.
struct IndexerScoresPlan {
  int32_t blocks_per_multiprocessor = 2;  // persistent blocks
  int32_t warp_groups = 2;                // consumers per block: 2 or 3
  int32_t stages = 8;                     // pages in flight per block, a multiple of warp_groups
  bool lone = false;  // the kernel for one query of one request, with two warp groups
};

IndexerScoresPlan plan_indexer_scores(const IndexerScoresParams& params);

void launch_indexer_scores(const IndexerScoresParams& params, device::StreamHandle stream);
void launch_indexer_scores_sm90(const IndexerScoresParams& params,
                                const IndexerScoresPlan& plan,
                                device::StreamHandle stream);
/// One thread per score, FP32: right on any GPU, not quick. Same contract; `max_pages` bounds the
/// pages of any request.
void launch_indexer_scores_portable(const IndexerScoresParams& params,
                                    int64_t max_pages,
                                    device::StreamHandle stream);

}  // namespace baleen::kernels
