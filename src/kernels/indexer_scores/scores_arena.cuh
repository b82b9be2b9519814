#pragma once
// Shared memory of a block of the index scores kernel: rings of key tiles and of queries, and how
// their users go round. Used by indexer_scores_sm90.cu.

#include <cstddef>
#include <cstdint>

#include "kernels/indexer_scores/indexer_scores.h"
#include "kernels/ptx/mbarrier.cuh"

namespace baleen::kernels {

inline constexpr uint32_t kTileBytes = kIndexPageEntries * kScoreDims;  // keys of a page
inline constexpr uint32_t kPageRows = kIndexPageBytes / kScoreDims;     // 64 of keys, 2 of scales
inline constexpr uint32_t kStageBytes = 9 * 1024;  // a page, up to the next swizzle atom
static_assert(kPageRows * kScoreDims == kIndexPageBytes && kIndexPageBytes <= kStageBytes);
inline constexpr uint32_t kQueryBytes = kScoreHeads * kScoreDims;
inline constexpr uint32_t kWeightBytes = kScoreHeads * 4;
inline constexpr uint32_t kQuerySlots =
    2;  // the next request's queries load while this one's are used

struct ScoresArena {
  uint8_t* pages;      // [stages] in the 128-byte swizzle, kStageBytes apart, 1,024-byte aligned
  uint8_t* queries;    // [kQuerySlots][q] query tiles, 1,024-byte aligned
  float* weights;      // [kQuerySlots][q][64]
  ptx::Barrier* full;  // [stages]
  ptx::Barrier* empty;
  ptx::Barrier* query_full;  // [kQuerySlots]
  ptx::Barrier* query_empty;
  int32_t* page_counts;  // [num_requests]

  __device__ ScoresArena(uint8_t* memory, uint32_t stages, uint32_t queries_per_request) {
    pages = memory;
    queries = pages + stages * kStageBytes;
    weights = reinterpret_cast<float*>(queries + kQuerySlots * queries_per_request * kQueryBytes);
    full =
        reinterpret_cast<ptx::Barrier*>(weights + kQuerySlots * queries_per_request * kScoreHeads);
    empty = full + stages;
    query_full = empty + stages;
    query_empty = query_full + kQuerySlots;
    page_counts = reinterpret_cast<int32_t*>(query_empty + kQuerySlots);
  }
  static std::size_t bytes(uint32_t stages, uint32_t queries_per_request, uint32_t requests) {
    return 1024 + stages * (kStageBytes + 16) +
           kQuerySlots * (queries_per_request * (kQueryBytes + kWeightBytes) + 16) + requests * 4;
  }
};

/// A place in a ring of slots and the parity of its round. A user that goes on by `stride` stays on
/// the same slots when the ring's size is a multiple of it; a slot must not change its user,
/// because a wait by parity cannot tell a round from the one before the last.
struct RingPlace {
  uint32_t slot = 0;
  uint32_t round = 0;

  __device__ __forceinline__ void next(uint32_t stride, uint32_t slots) {
    slot += stride;
    if (slot >= slots) {
      slot -= slots;
      round ^= 1;
    }
  }
};

__device__ __forceinline__ int32_t pages_seen(const IndexerScoresParams& params, int32_t request) {
  int32_t longest = 0;
  for (int32_t j = 0; j < params.queries_per_request; ++j) {
    longest = max(longest, params.lengths[request * params.queries_per_request + j]);
  }
  return (longest + static_cast<int32_t>(kIndexPageEntries) - 1) /
         static_cast<int32_t>(kIndexPageEntries);
}

}  // namespace baleen::kernels
