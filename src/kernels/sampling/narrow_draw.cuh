#pragma once
// The usual row: the kept set lies among at most 1,024 best tokens. The leader block knows the
// largest key of every 128 columns; the k-th largest of these is a lower bound of the k-th best
// token, so only groups that reach it are read again. What they hold above the bound is sorted;
// top-p, min-p, the draw and the lists work on the sorted candidates. Exact, ties to the lower id.
//
//   uint32_t bound = candidate_bound(arena, row, k);
//   bool fits = gather_candidates(arena, row, bound);
//   int count = sort_candidates(arena);

#include "kernels/sampling/sampling_arena.cuh"

namespace baleen::kernels {

inline constexpr int kBoundSlack = 16;  // candidates more than needed that end the search early

/// A key that k groups reach: the smallest leaf maximum when there are k finite leaves.
__device__ inline uint32_t least_leaf_maximum(SamplingArena& arena,
                                              const RowLogits& row,
                                              int k,
                                              int& turn) {
  const auto leaf = static_cast<int>(threadIdx.x);
  const float own = leaf < row.num_leaves ? arena.leaf_max[leaf] : minus_infinity();
  const bool finite = own > minus_infinity();
  const uint32_t least = __reduce_min_sync(kAllLanes, finite ? order_key(own) : 0xFFFFFFFFU);
  const int leaves = block_sum(arena, finite ? 1 : 0, turn++);
  if (sample_lane() == 0) {
    arena.counts[turn & 1][sample_warp()] = static_cast<int32_t>(least);
  }
  __syncthreads();
  uint32_t low = 0xFFFFFFFFU;
  for (int w = 0; w < kSampleWarps; ++w) {
    low = min(low, static_cast<uint32_t>(arena.counts[turn & 1][w]));
  }
  ++turn;
  return leaves >= k ? low : kLowestKey + 1;
}

/// A key that at least min(k, finite groups) groups reach.
__device__ inline uint32_t candidate_bound(SamplingArena& arena, const RowLogits& row, int k) {
  constexpr int kPerThread = kMostGroups / kSampleThreads;
  const int num_groups = row.num_leaves * kLeafGroups;
  uint32_t keys[kPerThread];
  uint32_t largest = 0;
  int finite = 0;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int g = static_cast<int>(threadIdx.x) + i * kSampleThreads;
    keys[i] = g < num_groups ? arena.group_keys[g] : 0;
    largest = max(largest, keys[i]);
    finite += keys[i] > kLowestKey ? 1 : 0;
  }
  int turn = 0;
  if (block_sum(arena, finite, turn++) <= k) {
    return kLowestKey + 1;
  }
  largest = __reduce_max_sync(kAllLanes, largest);
  if (sample_lane() == 0) {
    arena.counts[turn & 1][sample_warp()] = static_cast<int32_t>(largest);
  }
  __syncthreads();
  for (int w = 0; w < kSampleWarps; ++w) {
    largest = max(largest, static_cast<uint32_t>(arena.counts[turn & 1][w]));
  }
  ++turn;
  if (k == 1) {
    return largest;
  }
  uint32_t low = least_leaf_maximum(arena, row, k, turn);  // k groups reach it
  uint32_t high = largest + 1;                             // none reaches it
  while (high - low > 1) {                                 // four guesses at a time
    const uint32_t step = max((high - low) / 5, 1U);
    int reach[4] = {};
    int total[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t guess = min(low + step * static_cast<uint32_t>(j + 1), high);
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        reach[j] += keys[i] >= guess ? 1 : 0;
      }
    }
    block_sums(arena, reach, turn++, total);
    const uint32_t before = low;
    int reached = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t guess = min(before + step * static_cast<uint32_t>(j + 1), high);
      if (total[j] >= k) {
        low = guess;
        reached = total[j];
      } else {
        high = min(high, guess);
      }
    }
    if (reached > 0 && reached <= k + kBoundSlack) {
      break;
    }
  }
  return low;
}

/// Adds the lane's columns that `wanted` accepts; every lane of the warp calls.
template <class Wanted>
__device__ __forceinline__ void append_candidates(SamplingArena& arena,
                                                  float4 x,
                                                  int group,
                                                  Wanted wanted) {
  const float values[4] = {x.x, x.y, x.z, x.w};
  const int lane = sample_lane();
  const int32_t first = group * kGroupColumns + lane * 4;
  uint32_t masks[4];
  int total = 0;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    masks[c] = __ballot_sync(kAllLanes, wanted(order_key(values[c]), first + c));
    total += __popc(masks[c]);
  }
  if (total == 0) {
    return;
  }
  int at = 0;
  if (lane == 0) {
    at = atomicAdd(&arena.num_candidates, total);
  }
  at = __shfl_sync(kAllLanes, at, 0);
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const int place = at + __popc(masks[c] & ((1U << lane) - 1));
    if ((masks[c] >> lane & 1U) != 0 && place < kMostCandidates) {
      arena.candidates[place] = candidate_of(order_key(values[c]), first + c);
    }
    at += __popc(masks[c]);
  }
}

/// Fills `candidates` with every token whose key reaches `bound`; false when there are too many.
__device__ inline bool gather_candidates(SamplingArena& arena,
                                         const RowLogits& row,
                                         uint32_t bound) {
  if (threadIdx.x == 0) {
    arena.num_groups = 0;
    arena.num_candidates = 0;
  }
  __syncthreads();
  const int num_groups = row.num_leaves * kLeafGroups;
  for (int g = static_cast<int>(threadIdx.x); g < num_groups; g += kSampleThreads) {
    if (arena.group_keys[g] >= bound) {
      arena.groups[atomicAdd(&arena.num_groups, 1)] = static_cast<uint16_t>(g);
    }
  }
  __syncthreads();
  constexpr int kAhead = 4;  // loads in flight per lane
  const int chosen = arena.num_groups;
  const auto reaches = [bound](uint32_t key, int32_t) { return key >= bound; };
  for (int begin = sample_warp(); begin < chosen; begin += kSampleWarps * kAhead) {
    float4 raw[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int at = begin + i * kSampleWarps;
      raw[i] = at < chosen ? row.raw(arena.groups[at]) : make_float4(0.0F, 0.0F, 0.0F, 0.0F);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int at = begin + i * kSampleWarps;
      if (at < chosen) {
        const int g = arena.groups[at];
        bool bad = false;
        append_candidates(
            arena, row.group(g, raw[i], row.touched(g / kLeafGroups), bad), g, reaches);
      }
    }
  }
  __syncthreads();
  return arena.num_candidates <= kMostCandidates;
}

/// After a joint search of the border: collects exactly the kept tokens.
__device__ inline void gather_kept(SamplingArena& arena, const RowLogits& row, KeepBorder border) {
  if (threadIdx.x == 0) {
    arena.num_candidates = 0;
  }
  __syncthreads();
  const int num_groups = row.num_leaves * kLeafGroups;
  const auto kept = [border](uint32_t key, int32_t id) { return border.keeps(key, id); };
  for (int g = sample_warp(); g < num_groups; g += kSampleWarps) {
    bool bad = false;
    append_candidates(arena, row.group(g, row.raw(g), row.touched(g / kLeafGroups), bad), g, kept);
  }
  __syncthreads();
}

/// Sorts candidates best first into `sorted`; returns their number.
__device__ inline int sort_candidates(SamplingArena& arena) {
  const int count = arena.num_candidates;
  const auto thread = static_cast<int>(threadIdx.x);
  if (count <= kSampleThreads) {
    if (thread < count) {
      const uint64_t mine = arena.candidates[thread];
      int rank = 0;
      for (int i = 0; i < count; ++i) {
        rank += arena.candidates[i] > mine ? 1 : 0;
      }
      arena.sorted[rank] = mine;
    }
    __syncthreads();
    return count;
  }
  int padded = kSampleThreads;
  while (padded < count) {
    padded *= 2;
  }
  for (int i = thread; i < padded; i += kSampleThreads) {
    arena.sorted[i] = i < count ? arena.candidates[i] : 0;
  }
  for (int width = 2; width <= padded; width *= 2) {
    for (int distance = width / 2; distance > 0; distance /= 2) {
      __syncthreads();
      for (int i = thread; i < padded / 2; i += kSampleThreads) {
        const int left = 2 * i - (i & (distance - 1));
        const int right = left + distance;
        const uint64_t a = arena.sorted[left];
        const uint64_t b = arena.sorted[right];
        const bool descending = (left & width) == 0;
        if ((a < b) == descending) {
          arena.sorted[left] = b;
          arena.sorted[right] = a;
        }
      }
    }
  }
  __syncthreads();
  return count;
}

/// nucleus_length for at most 64 candidates: two chunks scanned side by side.
__device__ inline int short_nucleus_length(const double* masses, int count, float top_p) {
  const int lane = sample_lane();
  const double first = lane < count ? masses[lane] : 0.0;
  const double second = lane + 32 < count ? masses[lane + 32] : 0.0;
  double low = first;
  double high = second;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const double a = __shfl_up_sync(kAllLanes, low, distance);
    const double b = __shfl_up_sync(kAllLanes, high, distance);
    low += lane >= distance ? a : 0.0;
    high += lane >= distance ? b : 0.0;
  }
  const double half = __shfl_sync(kAllLanes, low, 31);
  const double border = static_cast<double>(top_p) * (half + __shfl_sync(kAllLanes, high, 31));
  const double before_low = __shfl_up_sync(kAllLanes, low, 1);
  const double before_high = __shfl_up_sync(kAllLanes, high, 1);
  const bool keeps_low = lane < count && (lane == 0 ? 0.0 : before_low) < border;
  const bool keeps_high = lane + 32 < count && half + (lane == 0 ? 0.0 : before_high) < border;
  return __popc(__ballot_sync(kAllLanes, keeps_low)) + __popc(__ballot_sync(kAllLanes, keeps_high));
}

/// Number of candidates in the shortest run that reaches top_p, by one warp. Sums run best first.
__device__ inline int nucleus_length(const double* masses, int count, float top_p) {
  if (count <= 64) {
    return short_nucleus_length(masses, count, top_p);
  }
  const int lane = sample_lane();
  double total = 0.0;
  for (int begin = 0; begin < count; begin += 32) {
    double sum = begin + lane < count ? masses[begin + lane] : 0.0;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      sum += __shfl_xor_sync(kAllLanes, sum, distance);
    }
    total += sum;
  }
  const double border = static_cast<double>(top_p) * total;
  double before = 0.0;
  int kept = 0;
  for (int begin = 0; begin < count && before < border; begin += 32) {
    double up_to = begin + lane < count ? masses[begin + lane] : 0.0;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const double other = __shfl_up_sync(kAllLanes, up_to, distance);
      up_to += lane >= distance ? other : 0.0;
    }
    const double earlier = __shfl_up_sync(kAllLanes, up_to, 1);
    const bool is_kept = begin + lane < count && before + (lane == 0 ? 0.0 : earlier) < border;
    kept += __popc(__ballot_sync(kAllLanes, is_kept));
    before += __shfl_sync(kAllLanes, up_to, 31);
  }
  return kept;
}

/// Draws among the first `count` sorted candidates; `best` is the exact z of the best one. Leaves
/// the drawn token's logit in `chosen`. The last warp finds the nucleus while the others score.
__device__ inline int32_t draw_narrow(SamplingArena& arena,
                                      const RowLogits& row,
                                      int count,
                                      double best) {
  const SamplingRow& p = row.params;
  const auto thread = static_cast<int>(threadIdx.x);
  constexpr int kScoring = kSampleThreads - 32;
  const bool filters = p.top_p < 1.0F || p.min_p > 0.0F;
  if (filters) {
    for (int i = thread; i < count; i += kSampleThreads) {
      arena.masses[i] = exp(row.z(key_value(candidate_key(arena.sorted[i]))) - best);
    }
  }
  if (thread == 0) {
    arena.found_id = count;
  }
  __syncthreads();
  if (p.top_p < 1.0F && sample_warp() == kSampleWarps - 1) {
    const int kept = nucleus_length(arena.masses, count, p.top_p);
    if (sample_lane() == 0) {
      arena.found_id = kept;
    }
  }
  if (thread < kScoring) {  // candidates' places are free: their scores
    auto* scores = reinterpret_cast<double*>(arena.candidates);
    for (int i = thread; i < count; i += kScoring) {
      const uint64_t candidate = arena.sorted[i];
      const double score =
          row.z(key_value(candidate_key(candidate))) + noise_of(p, candidate_id(candidate));
      const bool kept = !(p.min_p > 0.0F && arena.masses[i] < static_cast<double>(p.min_p));
      scores[i] = kept ? score : __longlong_as_double(0x7FF8000000000000LL);
    }
  }
  __syncthreads();
  const int kept = arena.found_id;
  Scored mine = {0.0, -1};
  const auto* scores = reinterpret_cast<const double*>(arena.candidates);
  for (int i = thread; i < kept; i += kSampleThreads) {
    if (scores[i] == scores[i]) {
      const Scored score = {scores[i], candidate_id(arena.sorted[i])};
      mine = better(score, mine) ? score : mine;
    }
  }
  constexpr int kFew = 64;
  if (kept <= kFew) {  // one warp ends it
    if (sample_warp() == 0) {
      const int i = thread + 32;
      if (i < kept && scores[i] == scores[i]) {
        const Scored score = {scores[i], candidate_id(arena.sorted[i])};
        mine = better(score, mine) ? score : mine;
      }
      const Scored drawn = warp_best(mine);
      for (int at = thread; at < kept; at += 32) {
        if (candidate_id(arena.sorted[at]) == drawn.id) {
          arena.chosen = key_value(candidate_key(arena.sorted[at]));
          arena.drawn_id = drawn.id;
        }
      }
    }
    __syncthreads();
    return arena.drawn_id;
  }
  const Scored drawn = block_best(arena, mine);
  for (int i = thread; i < kept; i += kSampleThreads) {
    if (candidate_id(arena.sorted[i]) == drawn.id) {
      arena.chosen = key_value(candidate_key(arena.sorted[i]));
    }
  }
  return drawn.id;
}

/// Sorts and draws from at most kFewCandidates candidates: warps rank them, score them and weigh
/// them at the same time, then the first warp ends it. Only that warp knows the result, `sorted` is
/// there for all. `best` is the exact z of the best one.
__device__ inline int32_t draw_few(SamplingArena& arena, const RowLogits& row, double best) {
  const SamplingRow& p = row.params;
  const int found = arena.num_candidates;
  const auto thread = static_cast<int>(threadIdx.x);
  constexpr int kRanking = 4 * kFewCandidates;
  constexpr int kWeighing = kRanking + 4 * 32;
  static_assert(kWeighing + kFewCandidates <= kSampleThreads && kFewCandidates == 64);
  if (thread < kRanking) {
    const int i = thread / 4;
    const uint64_t mine = i < found ? arena.candidates[i] : 0;
    int rank = 0;
    for (int c = thread % 4; c < found; c += 4) {
      rank += arena.candidates[c] > mine ? 1 : 0;
    }
    rank += __shfl_xor_sync(kAllLanes, rank, 1);
    rank += __shfl_xor_sync(kAllLanes, rank, 2);
    if (thread % 4 == 0 && i < found) {
      arena.sorted[rank] = mine;
      arena.few_rank[i] = rank;
    }
  } else if (thread < kRanking + kFewCandidates) {
    const int i = thread - kRanking;
    if (i < found) {
      const uint64_t candidate = arena.candidates[i];
      arena.few_score[i] =
          row.z(key_value(candidate_key(candidate))) + noise_of(p, candidate_id(candidate));
    }
  } else if (thread >= kWeighing && thread < kWeighing + kFewCandidates) {
    const int i = thread - kWeighing;
    if (i < found && (p.top_p < 1.0F || p.min_p > 0.0F)) {
      arena.few_mass[i] = exp(row.z(key_value(candidate_key(arena.candidates[i]))) - best);
    }
  }
  __syncthreads();
  if (sample_warp() != 0) {
    return -1;
  }
  const int count = min(p.top_k, found);
  int rank[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int i = thread + 32 * h;
    rank[h] = i < found ? arena.few_rank[i] : found;
    if (i < found) {
      arena.masses[rank[h]] = arena.few_mass[i];
    }
  }
  __syncwarp();
  const int kept = p.top_p < 1.0F ? short_nucleus_length(arena.masses, count, p.top_p) : count;
  Scored mine = {0.0, -1};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int i = thread + 32 * h;
    const bool passes =
        rank[h] < kept && !(p.min_p > 0.0F && arena.few_mass[i] < static_cast<double>(p.min_p));
    if (passes) {
      const Scored score = {arena.few_score[i], candidate_id(arena.candidates[i])};
      mine = better(score, mine) ? score : mine;
    }
  }
  const Scored drawn = warp_best(mine);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int i = thread + 32 * h;
    if (rank[h] < kept && candidate_id(arena.candidates[i]) == drawn.id) {
      arena.chosen = key_value(candidate_key(arena.candidates[i]));
    }
  }
  __syncwarp();
  return drawn.id;
}

}  // namespace baleen::kernels
