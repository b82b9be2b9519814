#pragma once
// Pools for tests: the real lengths, or everything 16 times smaller so that page borders, windows
// and groups come often.

#include <vector>

#include "cache/cache_workload.h"

namespace baleen::cache {

inline WorkloadOptions full_size(int32_t full_pages = 64, int32_t swa_pages = 24) {
  WorkloadOptions options;
  options.cache.sizes = {.full_pages = full_pages,
                         .swa_pages = swa_pages,
                         .checkpoint_slots = 64,
                         .open_group_blocks = 96,
                         .event_capacity = 0};
  options.cache.request_slots = 8;
  options.cache.rings = {.c4_rows = 16, .c128_rows = 136};
  return options;
}

inline WorkloadOptions small_size(int32_t full_pages = 24, int32_t swa_pages = 12) {
  WorkloadOptions options;
  options.cache.geometry = {.page_tokens = 16,
                            .window = 8,
                            .c4_ratio = 4,
                            .c128_ratio = 8,
                            .resume_step = 4,
                            .prompt_step = 8,
                            .open_group_rows = 4};
  options.cache.sizes = {.full_pages = full_pages,
                         .swa_pages = swa_pages,
                         .checkpoint_slots = 6,
                         .open_group_blocks = 1,
                         .event_capacity = 0};
  options.cache.request_slots = 4;
  options.cache.capture.interval = 32;
  options.cache.rings = {.c4_rows = 16, .c128_rows = 16};
  return options;
}

/// `count` token ids that other seeds do not share.
inline std::vector<int32_t> some_ids(int32_t count, int32_t seed = 0) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < count; ++i) {
    ids.push_back(10 + (i * 7919 + seed) % 997);
  }
  return ids;
}

inline std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline std::vector<int32_t> first_of(const std::vector<int32_t>& ids, int32_t count) {
  return {ids.begin(), ids.begin() + count};
}

}  // namespace baleen::cache
