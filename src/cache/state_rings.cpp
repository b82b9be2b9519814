#include "cache/state_rings.h"

#include <fmt/format.h>

#include "base/error.h"

namespace baleen::cache {
namespace {

void require_margin(const char* ring, int32_t rows, int32_t reach, int32_t verified_tokens) {
  const int32_t most = StateRings::most_verified(rows, reach);
  if (verified_tokens > most) {
    throw ConfigError(fmt::format(
        "{} = {}: a step that verifies {} tokens could overwrite rows that are still needed; "
        "at most {} fit, or the ring needs {} rows",
        ring,
        rows,
        verified_tokens,
        most,
        verified_tokens + reach - 2));
  }
}

}  // namespace

void StateRings::validate(const CacheGeometry& geometry, int32_t verified_tokens) const {
  if (geometry.c4_ratio > 0) {
    if (c4_rows <= 0 || geometry.page_tokens % c4_rows != 0 || c4_rows % geometry.c4_ratio != 0) {
      throw ConfigError(
          fmt::format("c4_ring_rows = {}: must divide a page of {} and be a multiple "
                      "of the ratio {}",
                      c4_rows,
                      geometry.page_tokens,
                      geometry.c4_ratio));
    }
    require_margin("c4_ring_rows", c4_rows, c4_reach(geometry), verified_tokens);
  }
  if (geometry.c128_ratio > 0) {
    require_margin("c128_ring_rows", c128_rows, geometry.c128_ratio, verified_tokens);
  }
}

}  // namespace baleen::cache
