#pragma once
// The lengths, in tokens, that the bookkeeping of the cache works with. Plain data, set once at
// start; the tree and the sequences never look at bytes.
//
//   CacheGeometry geometry = cache_geometry(shape);
//   int32_t pages = geometry.blocks_of(num_tokens);

#include <cstdint>
#include <string>

#include "cache/cache_shape.h"

namespace baleen::cache {

struct CacheGeometry {
  int32_t page_tokens = 256;     // positions of a page; a block is one page of a sequence
  int32_t window = 128;          // raw rows that attention sees
  int32_t c4_ratio = 4;          // tokens per entry; 0 without such layers
  int32_t c128_ratio = 128;      // the same
  int32_t resume_step = 4;       // resume points lie on its multiples
  int32_t prompt_step = 128;     // those inside prompts on multiples of this
  int32_t open_group_rows = 16;  // rows of one open-group block

  /// Throws ConfigError naming the field that does not fit the others.
  void validate() const;

  int32_t blocks_of(int32_t num_tokens) const {
    return (num_tokens + page_tokens - 1) / page_tokens;
  }
  int32_t floor_to_page(int32_t position) const { return position / page_tokens * page_tokens; }
  /// Pages that the window before a page border touches.
  int32_t window_pages() const { return blocks_of(window); }
  /// How far behind the committed length window rows are still wanted: by the next step, and by a
  /// resume point at the last multiple of resume_step.
  int32_t window_reach() const { return window + resume_step; }
  /// First position of the blocks that hold the window before `position`.
  int32_t window_begin(int32_t position) const {
    return floor_to_page(position > window ? position - window : 0);
  }
  /// Open-group blocks of a resume point at `position`.
  int32_t open_blocks_of(int32_t position) const {
    return c128_ratio == 0 ? 0 : (position % c128_ratio + open_group_rows - 1) / open_group_rows;
  }
};

CacheGeometry cache_geometry(const CacheShape& shape);
/// For the start-up log: "128 tokens in prompts, 4 at turn ends".
std::string resume_granularity(const CacheGeometry& geometry);

}  // namespace baleen::cache
