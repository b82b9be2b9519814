#pragma once
// The physical pools of the cache and the ids that address them. A slot of one pool is a type of
// its own; page 0 of every pool is the sink, a legal target of padded writes that is never leased.

#include <cstdint>

#include "base/strong_id.h"

namespace baleen::cache {

enum class Pool : uint8_t {
  kSwa,           // window rows, one per token and layer
  kC4,            // compressed entries of kC4 layers
  kC128,          // compressed entries of kC128 layers
  kIndexer,       // index keys of kC4 layers
  kC4State,       // compressor rows of kC4 layers, nested in window pages
  kIndexerState,  // index compressor rows, nested in window pages
  kC128State,     // compressor rows of kC128 layers, one ring per request
  kCheckpoint,    // resume points
  kOpenGroup,     // their rows of an unfinished kC128 group
};

inline constexpr int kNumPools = 9;

const char* pool_name(Pool pool);  // "swa", "c4", ...

template <Pool P>
struct PoolTag;
template <Pool P>
using PoolSlot = StrongId<PoolTag<P>>;
using FullPage = StrongId<struct FullPageTag>;       // 256 positions of the compressed pools
using SwaPage = StrongId<struct SwaPageTag>;         // 256 positions of the window pool
using CheckpointSlot = PoolSlot<Pool::kCheckpoint>;  // payload of one resume point
using OpenGroupBlock = PoolSlot<Pool::kOpenGroup>;   // rows of an unfinished kC128 group
using NamespaceId = StrongId<struct NamespaceTag>;   // interned cache salt and extra key
using CacheTicket = StrongId<struct CacheTicketTag, int64_t>;  // a step or copy in flight

}  // namespace baleen::cache
