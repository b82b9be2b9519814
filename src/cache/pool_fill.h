#pragma once
// How full the pools of a cache are: what is in use, what is kept for later requests and can be
// given up at once, and the rest, which is free. Counted, not walked. The engine's thread.
//
//   PoolFills fills = pool_fills(cache);

#include <cstdint>

#include "cache/sequence_cache.h"

namespace baleen::cache {

struct PoolFill {
  int32_t total = 0;  // without the sink
  int32_t used = 0;   // by running sequences, and by steps and copies in flight
  int32_t kept = 0;   // could be evicted
};

struct PoolFills {
  PoolFill pages;        // full pages: compressed entries and index keys
  PoolFill windows;      // window pages, with the rings nested in them
  PoolFill points;       // resume points
  PoolFill open_groups;  // rows of open groups; those of kept points count as used
};

PoolFills pool_fills(const SequenceCache& cache);

}  // namespace baleen::cache
