#include "cache/memory_plan.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/error.h"
#include "numerics/block_scale.h"

namespace baleen::cache {
namespace {

using numerics::ceil_div;

constexpr int64_t kDraftRingFactor = 4;           // rings of kC4 layers, in groups, with drafts
constexpr int64_t kPlainRingFactor = 2;           // the same without
constexpr int64_t kMostPages = int64_t{1} << 32;  // 2^40 tokens, above any memory
constexpr int64_t kDraftRows = 8;  // rows a C128 ring holds beyond its group, with drafts

void require_fraction(double value, const char* name) {
  if (!(value >= 0.0 && value < 1.0)) {
    throw ConfigError(fmt::format("{} must be in [0, 1), got {}", name, value));
  }
}

void require_positive(int64_t value, const char* name) {
  if (value <= 0) {
    throw ConfigError(fmt::format("{} must be positive, got {}", name, value));
  }
}

int64_t c128_blocks(const CacheShape& shape, int64_t full_pages) {
  return shape.c128_storage == C128Storage::kPerPage
             ? full_pages + 1
             : ceil_div(shape.c128_rows_per_page() * (full_pages + 1), kC128BlockRows);
}

int64_t swa_pages_for(int64_t full_pages, const CachePlanOptions& options) {
  const auto tails = static_cast<int64_t>(
      std::floor(options.swa_full_tokens_ratio * static_cast<double>(full_pages)));
  return 2 * options.max_running_requests + 2 * ceil_div(options.chunk_tokens, kPageTokens) + 2 +
         tails;
}

}  // namespace

RetainedBytes retained_bytes_per_token(const CacheShape& shape) {
  const auto per_token = [](const BlockLayout& block, int64_t layers, int64_t tokens) {
    return tokens == 0
               ? 0.0
               : static_cast<double>(block.block_bytes * layers) / static_cast<double>(tokens);
  };
  const int64_t c128_tokens =
      shape.c128_storage == C128Storage::kPerPage ? kPageTokens : kC128BlockRows * shape.c128_ratio;
  return {per_token(shape.c4_block, shape.num_c4, kPageTokens),
          per_token(shape.c128_block, shape.num_c128, c128_tokens),
          per_token(shape.index_block, shape.num_c4, kPageTokens)};
}

LivePageBytes live_page_bytes(const CacheShape& shape,
                              int64_t c4_ring_rows,
                              int64_t c128_ring_rows) {
  return {shape.swa_block.block_bytes * shape.num_layers,
          c4_ring_rows * (shape.c4_state_row_bytes + shape.index_state_row_bytes) * shape.num_c4,
          c128_ring_rows * shape.c128_state_row_bytes * shape.num_c128};
}

CacheBytes cache_bytes(const CacheShape& shape, const CacheSizes& sizes) {
  CacheBytes bytes;
  const int64_t pages = sizes.full_pages + 1;
  bytes.c4 = pages * shape.c4_block.block_bytes * shape.num_c4;
  bytes.indexer = pages * shape.index_block.block_bytes * shape.num_c4;
  bytes.c128 = c128_blocks(shape, sizes.full_pages) * shape.c128_block.block_bytes * shape.num_c128;
  bytes.swa = (sizes.swa_pages + 1) * shape.swa_block.block_bytes *
              (shape.num_layers + shape.num_draft_layers);
  const int64_t ring_rows = (sizes.swa_pages + 1) * sizes.c4_ring_rows + 1;
  bytes.c4_state = ring_rows * shape.c4_state_row_bytes * shape.num_c4;
  bytes.indexer_state = ring_rows * shape.index_state_row_bytes * shape.num_c4;
  bytes.c128_state = (sizes.request_slots + 1) * sizes.c128_ring_rows * shape.c128_state_row_bytes *
                     shape.num_c128;
  bytes.checkpoints = sizes.checkpoint_slots * shape.checkpoint_slot_bytes();
  bytes.open_groups = sizes.open_group_blocks * shape.open_group_block_bytes();
  return bytes;
}

CacheSizes fit_cache(const CacheShape& shape,
                     int64_t budget_bytes,
                     const CachePlanOptions& options) {
  require_fraction(options.swa_full_tokens_ratio, "swa_full_tokens_ratio");
  require_fraction(options.checkpoint_memory_fraction, "checkpoint_memory_fraction");
  require_positive(options.max_running_requests, "max_running_requests");
  require_positive(options.chunk_tokens, "chunk_tokens");
  CacheSizes sizes;
  sizes.request_slots = options.max_running_requests;
  sizes.c4_ring_rows = (options.drafts ? kDraftRingFactor : kPlainRingFactor) * shape.c4_ratio;
  sizes.c128_ring_rows = shape.c128_ratio + (options.drafts ? kDraftRows : 0);
  const double for_checkpoints =
      options.checkpoint_memory_fraction * static_cast<double>(std::max<int64_t>(budget_bytes, 0));
  const bool open_groups = shape.open_group_block_bytes() > 0;
  const double slot_share = open_groups ? 0.75 : 1.0;
  sizes.checkpoint_slots = static_cast<int64_t>(for_checkpoints * slot_share /
                                                static_cast<double>(shape.checkpoint_slot_bytes()));
  if (open_groups) {
    sizes.open_group_blocks = static_cast<int64_t>(
        for_checkpoints * 0.25 / static_cast<double>(shape.open_group_block_bytes()));
  }
  const auto total_with = [&](int64_t full_pages) {
    CacheSizes candidate = sizes;
    candidate.full_pages = full_pages;
    candidate.swa_pages = swa_pages_for(full_pages, options);
    return cache_bytes(shape, candidate).total();
  };
  if (total_with(1) > budget_bytes) {
    throw ConfigError(
        fmt::format("cache memory: {} bytes are too few; one page of {} tokens with "
                    "max_running_requests {} and "
                    "chunk_tokens {} needs {} bytes",
                    budget_bytes,
                    kPageTokens,
                    options.max_running_requests,
                    options.chunk_tokens,
                    total_with(1)));
  }
  int64_t low = 1;
  int64_t high = kMostPages;
  if (total_with(high) <= budget_bytes) {
    high = low;  // pages cost nothing: window-only layers without tails
  }
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (total_with(middle) <= budget_bytes ? low : high) = middle;
  }
  sizes.full_pages = low;
  sizes.swa_pages = swa_pages_for(low, options);
  return sizes;
}

ReferenceBytes reference_bytes_per_token(const CacheShape& shape, const ReferenceOptions& options) {
  const auto as_double = [](int64_t value) { return static_cast<double>(value); };
  const double entry = as_double(shape.swa_block.entry_bytes());
  const double window_ratio = options.swa_full_tokens_ratio;
  const double window = as_double(shape.window);
  const double charged_layers =
      as_double(shape.num_layers + (options.count_draft_layers ? shape.num_draft_layers : 0));
  ReferenceBytes bytes;
  bytes.swa = window_ratio * entry * charged_layers;
  if (shape.num_c4 > 0) {
    const double layers = as_double(shape.num_c4);
    const double ratio = as_double(shape.c4_ratio);
    const double rows = window_ratio * as_double(options.c4_ring_rows) / window;
    bytes.c4 = entry * layers / (ratio * options.c4_shrink);
    bytes.indexer = as_double(shape.index_block.entry_bytes()) * layers / ratio;
    bytes.c4_state = rows * as_double(shape.c4_state_row_bytes) * layers;
    bytes.indexer_state = rows * as_double(shape.index_state_row_bytes) * layers;
  }
  if (shape.num_c128 > 0) {
    const double layers = as_double(shape.num_c128);
    bytes.c128 = entry * layers / as_double(shape.c128_ratio);
    if (!options.c128_state_per_request) {
      bytes.c128_state = window_ratio * as_double(options.c128_ring_rows) / window *
                         as_double(shape.c128_state_row_bytes) * layers;
    }
  }
  return bytes;
}

}  // namespace baleen::cache
