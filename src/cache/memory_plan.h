#pragma once
// How much cache memory a model needs and what fits into a budget. The figure equals the bytes that
// the pools allocate, to the byte: sinks, sentinels and padding included. No device is needed.
//
//   CacheShape shape = cache_shape(config, formats);
//   CacheSizes sizes = fit_cache(shape, budget_bytes, CachePlanOptions{});
//   CacheBytes bytes = cache_bytes(shape, sizes);     // bytes.total() <= budget_bytes

#include <cstdint>

#include "cache/cache_shape.h"

namespace baleen::cache {

/// Bytes that stay with every cached token, over all layers (window rows do not).
struct RetainedBytes {
  double c4 = 0;
  double c128 = 0;
  double indexer = 0;
  double total() const { return c4 + c128 + indexer; }
  double tokens_per_gib() const { return static_cast<double>(int64_t{1} << 30) / total(); }
};

RetainedBytes retained_bytes_per_token(const CacheShape& shape);

/// Bytes of 256 tokens that keep all their state live, over all layers.
struct LivePageBytes {
  int64_t window = 0;      // main layers
  int64_t c4_rings = 0;    // attention and indexer
  int64_t c128_rings = 0;  // where C128 state is kept per page, as the reference does
  int64_t total() const { return window + c4_rings + c128_rings; }
};

LivePageBytes live_page_bytes(const CacheShape& shape,
                              int64_t c4_ring_rows,
                              int64_t c128_ring_rows);

/// Counts of everything the pools hold. Sinks and sentinels come on top.
struct CacheSizes {
  int64_t full_pages = 0;
  int64_t swa_pages = 0;
  int64_t request_slots = 0;
  int64_t checkpoint_slots = 0;
  int64_t open_group_blocks = 0;
  int64_t c4_ring_rows = 0;    // per window page
  int64_t c128_ring_rows = 0;  // per request

  int64_t tokens() const { return full_pages * kPageTokens; }
};

struct CacheBytes {
  int64_t c4 = 0;
  int64_t indexer = 0;
  int64_t c128 = 0;
  int64_t swa = 0;  // draft layers included
  int64_t c4_state = 0;
  int64_t indexer_state = 0;
  int64_t c128_state = 0;
  int64_t checkpoints = 0;
  int64_t open_groups = 0;

  int64_t total() const {
    return c4 + indexer + c128 + swa + c4_state + indexer_state + c128_state + checkpoints +
           open_groups;
  }
};

CacheBytes cache_bytes(const CacheShape& shape, const CacheSizes& sizes);

struct CachePlanOptions {
  int64_t max_running_requests = 256;
  int64_t chunk_tokens = 8192;         // of one prefill step
  double swa_full_tokens_ratio = 0.1;  // window pages kept for tails in the tree, per full page
  double checkpoint_memory_fraction = 0.1;  // of the cache memory, a quarter for open groups
  bool drafts = true;                       // speculation: longer rings
};

/// The largest cache within the budget. Throws ConfigError with the bytes that one full page would
/// need when not even that fits, and naming the option that is out of range.
CacheSizes fit_cache(const CacheShape& shape,
                     int64_t budget_bytes,
                     const CachePlanOptions& options);

/// Bytes per full token as the reference program computes them (no padding, state divided by the
/// window), for comparison.
struct ReferenceOptions {
  double swa_full_tokens_ratio = 0.1;
  int64_t c4_ring_rows = 8;             // 16 with speculation
  int64_t c128_ring_rows = 128;         // 256 with speculation
  bool c128_state_per_request = false;  // then it is a fixed term
  bool count_draft_layers = false;      // charge their window as the reference's formula does
  double c4_shrink = 1.0;               // host tier: share of C4 rows kept on the device
};

struct ReferenceBytes {
  double swa = 0;
  double c4 = 0;
  double c128 = 0;
  double indexer = 0;
  double c4_state = 0;
  double c128_state = 0;
  double indexer_state = 0;
  double total() const { return swa + c4 + c128 + indexer + c4_state + c128_state + indexer_state; }
};

ReferenceBytes reference_bytes_per_token(const CacheShape& shape, const ReferenceOptions& options);

}  // namespace baleen::cache
