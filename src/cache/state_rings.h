#pragma once
// Where compressor state lies and what a pass must write there. Rings of kC4 layers are nested in
// window pages: freeing the page ends the life of its rows. Rings of kC128 layers belong to the
// request. Pure functions, any thread; the model's writers and readers, host and device, follow
// them.
//
//   StateRings rings{.c4_rows = 16, .c128_rows = 136};
//   rings.validate(geometry, verified_tokens);
//   PoolSlot<Pool::kC4State> row = c4_state_slot(swa_page, pos, rings.c4_rows);

#include <cstdint>

#include "base/strong_id.h"
#include "cache/cache_geometry.h"
#include "cache/pool.h"

namespace baleen::cache {

/// Row of `pos` in the ring nested in `page`; also of the index compressor's ring, which has the
/// same rows. The page must be the one that holds `pos`.
constexpr PoolSlot<Pool::kC4State> c4_state_slot(SwaPage page, TokenPos pos, int32_t ring_rows) {
  return PoolSlot<Pool::kC4State>(page.value() * ring_rows + pos.value() % ring_rows);
}

/// Row of `pos` in the request's own ring. Slot numbers count from 0, ring 0 is the sink of padded
/// rows. The ring need not divide a page.
constexpr PoolSlot<Pool::kC128State> c128_state_slot(RequestSlot slot,
                                                     TokenPos pos,
                                                     int32_t ring_rows) {
  return PoolSlot<Pool::kC128State>((slot.value() + 1) * ring_rows + pos.value() % ring_rows);
}

/// Entry of the group that `pos` closes; 0, the sink, for a position that closes none.
constexpr PoolSlot<Pool::kC4> c4_slot(FullPage page, TokenPos pos, const CacheGeometry& geometry) {
  const int32_t offset = pos.value() % geometry.page_tokens;
  return PoolSlot<Pool::kC4>((offset + 1) % geometry.c4_ratio != 0
                                 ? 0
                                 : (page.value() * geometry.page_tokens + offset) /
                                       geometry.c4_ratio);
}
constexpr PoolSlot<Pool::kC128> c128_slot(FullPage page,
                                          TokenPos pos,
                                          const CacheGeometry& geometry) {
  const int32_t offset = pos.value() % geometry.page_tokens;
  return PoolSlot<Pool::kC128>((offset + 1) % geometry.c128_ratio != 0
                                   ? 0
                                   : (page.value() * geometry.page_tokens + offset) /
                                         geometry.c128_ratio);
}

struct StateRings {
  int32_t c4_rows = 8;      // 16 with drafts
  int32_t c128_rows = 128;  // 136 with drafts

  /// Rows of a ring that closing a group may read: two groups with overlap, else one.
  static constexpr int32_t c4_reach(const CacheGeometry& geometry) { return 2 * geometry.c4_ratio; }

  /// Verified tokens per step that a ring bears: a step may overwrite the row of position p with
  /// that of p + rows only if no later group needs p, whatever is accepted.
  static constexpr int32_t most_verified(int32_t ring_rows, int32_t reach) {
    return ring_rows - reach + 2;
  }

  /// Throws ConfigError naming the ring that is too short for `verified_tokens` (drafts + 1; 1
  /// without drafts), does not divide a page, or is no multiple of the ratio.
  void validate(const CacheGeometry& geometry, int32_t verified_tokens) const;
};

/// Whether a pass over [begin, end) must leave the row of `pos` in the kC4 rings: a later pass may
/// read it. `margin` is the number of last positions that may be refused (0 without drafts). The
/// last c4_ratio rows of every page are always kept, because a sequence that reuses the page
/// continues from them.
constexpr bool keeps_c4_row(int32_t pos,
                            int32_t end,
                            int32_t margin,
                            const CacheGeometry& geometry) {
  const int32_t ratio = geometry.c4_ratio;
  const int32_t first = (end - margin) / ratio * ratio - ratio;  // carry of the group open then
  return pos >= first || pos % geometry.page_tokens >= geometry.page_tokens - ratio;
}

/// The same for the request's kC128 ring.
constexpr bool keeps_c128_row(int32_t pos,
                              int32_t end,
                              int32_t margin,
                              const CacheGeometry& geometry) {
  const int32_t ratio = geometry.c128_ratio;
  return pos >= (end - margin) / ratio * ratio;
}

}  // namespace baleen::cache
