#pragma once
// Recomputes all bookkeeping of the cache from scratch and compares. For tests at every step, and
// for an idle engine. Costs a walk over all pages, nodes, points, sequences and tickets. The
// engine's thread.
//
//   std::string fault = audit(cache);     // empty: every invariant holds

#include <string>

#include "cache/sequence_cache.h"

namespace baleen::cache {

std::string audit(const SequenceCache& cache);

}  // namespace baleen::cache
