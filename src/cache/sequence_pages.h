#pragma once
// The page tables of one sequence as the model reads them: which pages hold its positions. The
// runner owns it and changes it between steps only; the model keeps a pointer.
//
//   SequencePages pages{.full = {FullPage(3)}, .swa = {SwaPage(7)}, .ring = 1};

#include <cstdint>
#include <vector>

#include "cache/cache_shape.h"
#include "cache/pool.h"

namespace baleen::cache {

struct SequencePages {
  std::vector<FullPage> full;  // per block of kPageTokens positions
  std::vector<SwaPage> swa;    // the same; 0: the window rows of the block are given up
  int64_t ring = 0;            // of the request in the kC128 ring pool; 0 is the sink
  int64_t draft_begin = 0;     // draft rows before this position are hidden
  int64_t draft_hole = -1;     // this one too; -1: none
};

}  // namespace baleen::cache
