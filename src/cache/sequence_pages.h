#pragma once
// The page tables of one sequence as the model reads them: which pages hold its positions. The
// runner owns it and changes it between steps only; the model keeps a pointer.
//
//   SequencePages pages{.full = {FullPage(3)}, .swa = {SwaPage(7)}, .slot = RequestSlot(0)};

#include <vector>

#include "base/strong_id.h"
#include "cache/cache_shape.h"
#include "cache/pool.h"

namespace baleen::cache {

struct SequencePages {
  std::vector<FullPage> full;  // per block of kPageTokens positions
  std::vector<SwaPage> swa;    // the same; 0: the window rows of the block are given up
  RequestSlot slot;            // whose kC128 rings are the sequence's own
};

}  // namespace baleen::cache
