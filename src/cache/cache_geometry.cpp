#include "cache/cache_geometry.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "base/error.h"

namespace baleen::cache {
namespace {

constexpr int32_t kFinestStep = 4;          // of turn ends
constexpr int32_t kMostPointsPerPage = 64;  // bits of a node's mask of resume positions
constexpr int32_t kMostOpenBlocks = 16;

void require(bool holds, const char* field, int32_t value, const char* rule) {
  if (!holds) {
    throw ConfigError(fmt::format("cache geometry: {} = {}: {}", field, value, rule));
  }
}

}  // namespace

void CacheGeometry::validate() const {
  require(page_tokens > 0, "page_tokens", page_tokens, "must be positive");
  require(window > 0, "window", window, "must be positive");
  require(c4_ratio >= 0 && (c4_ratio == 0 || page_tokens % c4_ratio == 0),
          "c4_ratio",
          c4_ratio,
          "must divide page_tokens");
  require(c128_ratio >= 0 && (c128_ratio == 0 || page_tokens % c128_ratio == 0),
          "c128_ratio",
          c128_ratio,
          "must divide page_tokens");
  require(resume_step > 0 && (c4_ratio == 0 || resume_step % c4_ratio == 0),
          "resume_step",
          resume_step,
          "must be a positive multiple of c4_ratio, so that no such group is open");
  require(prompt_step > 0 && prompt_step % resume_step == 0,
          "prompt_step",
          prompt_step,
          "must be a positive multiple of resume_step");
  require(page_tokens == prompt_step || page_tokens == 2 * prompt_step,
          "prompt_step",
          prompt_step,
          "must be a page or half of one");
  require(page_tokens / resume_step <= kMostPointsPerPage,
          "resume_step",
          resume_step,
          "gives more than 64 positions per page");
  require(open_group_rows > 0 &&
              (c128_ratio + open_group_rows - 1) / open_group_rows <= kMostOpenBlocks,
          "open_group_rows",
          open_group_rows,
          "gives more than 16 blocks per group");
}

CacheGeometry cache_geometry(const CacheShape& shape) {
  CacheGeometry geometry;
  geometry.page_tokens = static_cast<int32_t>(kPageTokens);
  geometry.window = static_cast<int32_t>(shape.window);
  geometry.c4_ratio = static_cast<int32_t>(shape.c4_ratio);
  geometry.c128_ratio = static_cast<int32_t>(shape.c128_ratio);
  geometry.resume_step = std::lcm(kFinestStep, std::max(geometry.c4_ratio, 1));
  geometry.prompt_step = geometry.page_tokens / 2;
  geometry.open_group_rows = static_cast<int32_t>(kOpenGroupRows);
  geometry.validate();
  return geometry;
}

std::string resume_granularity(const CacheGeometry& geometry) {
  return fmt::format(
      "{} tokens in prompts, {} at turn ends", geometry.prompt_step, geometry.resume_step);
}

}  // namespace baleen::cache
