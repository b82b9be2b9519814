#pragma once
// The slots of one token in ascending expert id, equal ids by slot: the order in which whatever
// belongs to a token's experts is summed. For the few slots of a token; no memory.
//
//   for_each_slot_ascending(experts, 6, 256, [&](int64_t slot) { sum += weights[slot]; });

#include <cstdint>

#include "base/check.h"

namespace baleen::kernels {

/// experts [slots], each in [0, num_experts) (checked).
template <class Visit>
void for_each_slot_ascending(const int64_t* experts,
                             int64_t slots,
                             int64_t num_experts,
                             Visit&& visit) {
  // The next slot is the one of the smallest (expert, slot) pair after the last.
  int64_t last_expert = -1;
  int64_t last_slot = -1;
  for (int64_t done = 0; done < slots; ++done) {
    int64_t next = -1;
    for (int64_t slot = 0; slot < slots; ++slot) {
      const int64_t expert = experts[slot];
      const bool after = expert > last_expert || (expert == last_expert && slot > last_slot);
      if (after && (next < 0 || expert < experts[next])) {
        next = slot;
      }
    }
    BALEEN_CHECK(next >= 0, "an expert id is below -1");
    last_expert = experts[next];
    last_slot = next;
    BALEEN_CHECK(
        last_expert >= 0 && last_expert < num_experts, "expert {} of {}", last_expert, num_experts);
    visit(next);
  }
}

}  // namespace baleen::kernels
