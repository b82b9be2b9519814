#pragma once
// Token ids for the runner's tests.
#include <cstdint>
#include <vector>

namespace baleen::runner {

/// `count` ids below 200, repeatable, other ones for every `salt`.
inline std::vector<int32_t> some_ids(int32_t count, int32_t salt) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < count; ++i) {
    ids.push_back((i * 37 + salt * 11 + i * i) % 200);
  }
  return ids;
}

}  // namespace baleen::runner
