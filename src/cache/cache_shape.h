#pragma once
// What the cache needs to know of a model, and the byte sizes that follow from it. Built once at
// start from the model's config; plain data.
//
//   CacheShape shape = cache_shape(config, CacheFormats{});
//   shape.c4_block.block_bytes

#include <cstdint>

#include "base/model_config.h"
#include "cache/pool_layout.h"

namespace baleen::cache {

/// Where entries of kC128 layers lie: in a block of their own per full page (as the reference
/// does), or in blocks of 128 rows that 64 consecutive full pages share.
enum class C128Storage : uint8_t { kPerPage, kShared };

struct CacheFormats {
  KvFormat kv = KvFormat::kPacked;
  IndexFormat index = IndexFormat::kFp8;
  C128Storage c128 = C128Storage::kShared;
  int64_t state_element_bytes = 4;   // compressor rings: float32 (8 in double)
  int64_t stream_element_bytes = 2;  // residual streams kept by resume points: bf16
};

inline constexpr int64_t kPageTokens = 256;     // positions of a full page and of a window page
inline constexpr int64_t kC128BlockRows = 128;  // rows of a shared C128 block
inline constexpr int64_t kOpenGroupRows = 16;   // rows of an open-group block of resume points

struct CacheShape {
  int64_t num_layers = 0;        // main layers: each has window rows
  int64_t num_draft_layers = 0;  // MTP blocks: window rows only
  int64_t num_c4 = 0;
  int64_t num_c128 = 0;
  int64_t c4_ratio = 0;      // tokens per entry; 0 without such layers
  int64_t c128_ratio = 0;    // the same
  int64_t window = 0;        // tokens
  BlockLayout swa_block;     // one window page
  BlockLayout window_block;  // the window rows of one layer in a resume point
  BlockLayout c4_block;      // entries of one full page
  BlockLayout c128_block;    // entries of one full page, or a shared block
  BlockLayout index_block;   // index keys of one full page
  C128Storage c128_storage = C128Storage::kShared;
  int64_t c4_state_row_bytes = 0;
  int64_t index_state_row_bytes = 0;
  int64_t c128_state_row_bytes = 0;
  int64_t carry_bytes = 0;    // per kC4 layer in a resume point
  int64_t streams_bytes = 0;  // residual streams of one position

  int64_t c128_rows_per_page() const { return c128_ratio == 0 ? 0 : kPageTokens / c128_ratio; }
  /// A resume point: window rows of every layer, carry rows, streams.
  int64_t checkpoint_slot_bytes() const;
  /// Rows of an unfinished kC128 group, for all layers.
  int64_t open_group_block_bytes() const;
};

/// Throws ConfigError naming compress_ratios when a ratio does not divide a page, or when layers of
/// one kind have different ratios.
CacheShape cache_shape(const ModelConfig& config, const CacheFormats& formats);

}  // namespace baleen::cache
