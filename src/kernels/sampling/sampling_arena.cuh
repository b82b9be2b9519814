#pragma once
// Shared memory of one block of the sampling kernel, and its block-wide reductions. In a cluster
// the arrays marked "leader" are filled in block 0 by every block.
//
//   __shared__ SamplingArena arena;
//   int total = block_sum(arena, mine);

#include "kernels/sampling/gumbel_noise.h"
#include "kernels/sampling/row_logits.cuh"

namespace baleen::kernels {

inline constexpr int kSampleThreads = 512;
inline constexpr int kSampleWarps = kSampleThreads / 32;
inline constexpr int kMostGroups = kMostLeaves * kLeafGroups;
inline constexpr int kNarrowTopK = 1024;      // largest top_k that is sorted
inline constexpr int kMostCandidates = 2048;  // of a sort
inline constexpr int kFewCandidates = 64;     // that one warp draws from
inline constexpr int kDigitBins = 256;
inline constexpr int kMassBits = 46;  // probabilities relative to the largest, fixed point

/// A kept set as a border in the order of candidates: keys above `key`, and of those equal to it
/// the ids up to `last_id`.
struct KeepBorder {
  uint32_t key = kLowestKey;
  int32_t last_id = -1;
  __device__ bool keeps(uint32_t k, int32_t id) const {
    return k > key || (k == key && id <= last_id);
  }
};

struct SamplingArena {
  RowRules rules;
  float leaf_max[kMostLeaves];       // leader
  float leaf_sum[kMostLeaves];       // leader; NaN: the leaf holds a NaN or +inf
  uint32_t group_keys[kMostGroups];  // leader: largest key of every 128 columns
  int32_t tie_counts[kMostLeaves];   // leader
  uint64_t candidates[kMostCandidates];
  union {
    uint64_t sorted[kMostCandidates];
    uint16_t groups[kMostGroups];       // chosen groups, before the sort
    uint32_t histogram[4][kDigitBins];  // three limbs of mass, one count
  };
  double masses[kMostCandidates];
  double best_score[kSampleWarps];
  int32_t best_id[kSampleWarps];
  double cluster_score[8];       // leader
  int32_t cluster_id[8];         // leader
  double partial[kSampleWarps];  // of the sum of exponentials, one per warp of leaves
  double log_sum;                // of all, relative to the best token
  int32_t counts[2][kSampleWarps];
  uint2 count_pairs[2][kSampleWarps];
  int32_t few_rank[kFewCandidates];  // of unsorted candidates
  double few_score[kFewCandidates];
  double few_mass[kFewCandidates];
  uint64_t bin_mass[kDigitBins];
  uint32_t bin_count[kDigitBins];
  uint64_t before;
  uint64_t bin_total;
  uint32_t digit;
  uint32_t ties;
  int32_t num_groups;
  int32_t num_candidates;
  int32_t found_id;
  int32_t drawn_id;
  // Leader's decisions, pushed to every block.
  int32_t needs_select;  // too many candidates: find the border of `select_k` together
  int32_t select_k;
  int32_t needs_wide;  // the kept set is not among the sorted candidates
  float largest;       // best transformed logit
  float chosen;        // transformed logit of the drawn token, leader alone
};

__device__ __forceinline__ int sample_lane() {
  return static_cast<int>(threadIdx.x) % 32;
}
__device__ __forceinline__ int sample_warp() {
  return static_cast<int>(threadIdx.x) / 32;
}

/// Sum over the block; `turn` alternates between calls so that one barrier is enough.
__device__ __forceinline__ int block_sum(SamplingArena& arena, int mine, int turn) {
  const int sum = __reduce_add_sync(kAllLanes, mine);
  if (sample_lane() == 0) {
    arena.counts[turn & 1][sample_warp()] = sum;
  }
  __syncthreads();
  int total = 0;
#pragma unroll
  for (int w = 0; w < kSampleWarps; ++w) {
    total += arena.counts[turn & 1][w];
  }
  return total;
}

/// Four sums over the block, each below 2^16.
__device__ __forceinline__ void block_sums(SamplingArena& arena,
                                           const int (&mine)[4],
                                           int turn,
                                           int (&total)[4]) {
  const auto low = static_cast<uint32_t>(mine[0] | mine[1] << 16);
  const auto high = static_cast<uint32_t>(mine[2] | mine[3] << 16);
  const uint2 sums =
      make_uint2(__reduce_add_sync(kAllLanes, low), __reduce_add_sync(kAllLanes, high));
  if (sample_lane() == 0) {
    arena.count_pairs[turn & 1][sample_warp()] = sums;
  }
  __syncthreads();
  uint2 all = make_uint2(0, 0);
#pragma unroll
  for (int w = 0; w < kSampleWarps; ++w) {
    const uint2 of = arena.count_pairs[turn & 1][w];
    all.x += of.x;
    all.y += of.y;
  }
  total[0] = static_cast<int>(all.x & 0xFFFFU);
  total[1] = static_cast<int>(all.x >> 16);
  total[2] = static_cast<int>(all.y & 0xFFFFU);
  total[3] = static_cast<int>(all.y >> 16);
}

struct Scored {
  double score;
  int32_t id;
};
/// Better: the larger score, then the lower id; id -1 is no candidate.
__device__ __forceinline__ bool better(const Scored& a, const Scored& b) {
  return a.id >= 0 && (b.id < 0 || a.score > b.score || (a.score == b.score && a.id < b.id));
}
__device__ __forceinline__ Scored warp_best(Scored mine) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const Scored other = {__shfl_xor_sync(kAllLanes, mine.score, distance),
                          __shfl_xor_sync(kAllLanes, mine.id, distance)};
    mine = better(other, mine) ? other : mine;
  }
  return mine;
}
/// Best of the block, known to every thread.
__device__ __forceinline__ Scored block_best(SamplingArena& arena, Scored mine) {
  mine = warp_best(mine);
  __syncthreads();
  if (sample_lane() == 0) {
    arena.best_score[sample_warp()] = mine.score;
    arena.best_id[sample_warp()] = mine.id;
  }
  __syncthreads();
  Scored best = {arena.best_score[0], arena.best_id[0]};
#pragma unroll
  for (int w = 1; w < kSampleWarps; ++w) {
    const Scored other = {arena.best_score[w], arena.best_id[w]};
    best = better(other, best) ? other : best;
  }
  return best;
}

/// Out of line: its code is long, and is fetched once.
static __device__ __noinline__ double noise_of(const SamplingRow& p, int32_t id) {
  return gumbel_noise(p.seed, p.sample_index, p.position, id, kSamplingStream);
}

}  // namespace baleen::kernels
