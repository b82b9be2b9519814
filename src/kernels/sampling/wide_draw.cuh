#pragma once
// The row whose kept set may be the whole vocabulary: no top-k, or one above 1,024, or ties without
// end. All blocks of the cluster take part, each over its own leaves.
//   - border: radix search over the 32-bit keys, 8 bits a round. Counts for top-k; for top-p the
//     probability mass in fixed point (46 bits below the largest), so sums are exact and
//     order-free;
//   - draw: Gumbel-max. FP32 estimates of z + g rule out all but a few tokens per warp; these are
//     scored in double. Estimates that may be off (u within 2^-24 of 0 or 1) are scored exactly.
//
//   KeepBorder border = find_border(arena, row, team, BorderKind::kCount, k, best, {});

#include "kernels/ptx/cluster.cuh"
#include "kernels/sampling/narrow_draw.cuh"

namespace baleen::kernels {

/// The blocks of a row's cluster and the leaves of this one.
struct RowTeam {
  int rank;
  int size;
  int first_leaf;
  int end_leaf;
};

enum class BorderKind { kCount, kMass };

__device__ inline void count_digits(SamplingArena& arena,
                                    const RowLogits& row,
                                    const RowTeam& team,
                                    BorderKind kind,
                                    int digit,
                                    uint32_t prefix,
                                    double best,
                                    KeepBorder within) {
  for (int i = static_cast<int>(threadIdx.x); i < 4 * kDigitBins; i += kSampleThreads) {
    (&arena.histogram[0][0])[i] = 0;
  }
  __syncthreads();
  const int shift = 8 * digit;
  for (int leaf = team.first_leaf + sample_warp(); leaf < team.end_leaf; leaf += kSampleWarps) {
    const bool touched = row.touched(leaf);
    for (int j = 0; j < kLeafGroups; ++j) {
      const int g = leaf * kLeafGroups + j;
      bool bad = false;
      const float4 x = row.group(g, row.raw(g), touched, bad);
      const float values[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const uint32_t key = order_key(values[c]);
        const int32_t id = g * kGroupColumns + sample_lane() * 4 + c;
        const bool same = digit == 3 || key >> (shift + 8) == prefix >> (shift + 8);
        if (!same || !within.keeps(key, id)) {
          continue;
        }
        const uint32_t bin = key >> shift & 255U;
        atomicAdd(&arena.histogram[3][bin], 1U);
        if (kind == BorderKind::kMass) {
          const double mass = exp(row.z(values[c]) - best) * static_cast<double>(1LL << kMassBits);
          const auto fixed = static_cast<uint64_t>(__double2ull_rn(mass));
          atomicAdd(&arena.histogram[0][bin], static_cast<uint32_t>(fixed & 0xFFFFU));
          atomicAdd(&arena.histogram[1][bin], static_cast<uint32_t>(fixed >> 16 & 0xFFFFU));
          atomicAdd(&arena.histogram[2][bin], static_cast<uint32_t>(fixed >> 32));
        }
      }
    }
  }
}

/// Lowest id such that `count` tokens with this key have an id up to it. All blocks call.
__device__ inline int32_t nth_tie(
    SamplingArena& arena, const RowLogits& row, const RowTeam& team, uint32_t key, int32_t count) {
  const auto ties_of = [&](int g, bool touched, uint32_t& mine) {
    bool bad = false;
    const float4 x = row.group(g, row.raw(g), touched, bad);
    mine = (order_key(x.x) == key ? 1U : 0U) | (order_key(x.y) == key ? 2U : 0U) |
           (order_key(x.z) == key ? 4U : 0U) | (order_key(x.w) == key ? 8U : 0U);
    return static_cast<int>(__reduce_add_sync(kAllLanes, static_cast<unsigned>(__popc(mine))));
  };
  for (int leaf = team.first_leaf + sample_warp(); leaf < team.end_leaf; leaf += kSampleWarps) {
    const bool touched = row.touched(leaf);
    int total = 0;
    for (int j = 0; j < kLeafGroups; ++j) {
      uint32_t mine = 0;
      total += ties_of(leaf * kLeafGroups + j, touched, mine);
    }
    if (sample_lane() == 0) {
      ptx::peer_pointer(arena.tie_counts, 0)[leaf] = total;
    }
  }
  ptx::cluster_sync();
  if (sample_warp() == 0) {  // every block finds the same id
    const int32_t* totals = ptx::peer_pointer(arena.tie_counts, 0);
    int left = count;
    int leaf = 0;
    while (leaf < row.num_leaves - 1 && totals[leaf] < left) {
      left -= totals[leaf++];
    }
    const bool touched = row.touched(leaf);
    int32_t id = -1;
    for (int j = 0; j < kLeafGroups && id < 0; ++j) {
      const int g = leaf * kLeafGroups + j;
      uint32_t mine = 0;
      const int total = ties_of(g, touched, mine);
      if (total < left) {
        left -= total;
        continue;
      }
      int up_to = __popc(mine);
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(kAllLanes, up_to, distance);
        up_to += sample_lane() >= distance ? other : 0;
      }
      int earlier = up_to - __popc(mine);
      int32_t found = -1;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if ((mine >> c & 1U) != 0 && ++earlier == left) {
          found = g * kGroupColumns + sample_lane() * 4 + c;
        }
      }
      id = __reduce_max_sync(kAllLanes, found);
    }
    if (sample_lane() == 0) {
      arena.found_id = id;
    }
  }
  __syncthreads();
  ptx::cluster_sync();  // the leader's counts are free again
  return arena.found_id;
}

/// The border of the `count` best tokens, or of the shortest best-first run of probability `top_p`,
/// of the tokens `within` keeps. All blocks call and get the same answer.
__device__ inline KeepBorder find_border(SamplingArena& arena,
                                         const RowLogits& row,
                                         const RowTeam& team,
                                         BorderKind kind,
                                         uint32_t count,
                                         double best,
                                         KeepBorder within) {
  const auto thread = static_cast<int>(threadIdx.x);
  uint32_t prefix = 0;
  uint64_t before = 0;
  double border = static_cast<double>(count);
  for (int digit = 3; digit >= 0; --digit) {
    count_digits(arena, row, team, kind, digit, prefix, best, within);
    ptx::cluster_sync();
    uint64_t mass = 0;
    uint32_t number = 0;
    const bool has_bin = thread < kDigitBins;
    for (int r = 0; r < team.size && has_bin; ++r) {
      const uint32_t* theirs = ptx::peer_pointer(&arena.histogram[0][0], static_cast<uint32_t>(r));
      mass += theirs[thread] + (static_cast<uint64_t>(theirs[kDigitBins + thread]) << 16) +
              (static_cast<uint64_t>(theirs[2 * kDigitBins + thread]) << 32);
      number += theirs[3 * kDigitBins + thread];
    }
    if (kind == BorderKind::kCount) {
      mass = number;
    }
    if (has_bin) {
      arena.bin_mass[thread] = mass;
      arena.bin_count[thread] = number;
    }
    ptx::cluster_sync();  // also a block barrier; the histograms are free again
    uint64_t above = before;
    for (int b = thread + 1; b < kDigitBins; ++b) {
      above += arena.bin_mass[b];
    }
    if (digit == 3) {
      if (thread == 0) {
        arena.before = above + mass;  // of everything
      }
      __syncthreads();
      const auto everything = static_cast<double>(arena.before);
      __syncthreads();
      if (kind == BorderKind::kMass) {
        border = static_cast<double>(row.params.top_p) * everything;
      } else if (border >= everything) {
        return within;
      }
    }
    const auto up_to = static_cast<double>(above + mass);
    if (has_bin && static_cast<double>(above) < border && border <= up_to) {  // one thread
      arena.digit = static_cast<uint32_t>(thread);
      arena.before = above;
      arena.bin_total = mass;
      arena.ties = number;
    }
    __syncthreads();
    prefix |= arena.digit << (8 * digit);
    before = arena.before;
    __syncthreads();
  }
  const double missing = border - static_cast<double>(before);
  const double each = static_cast<double>(arena.bin_total) / arena.ties;
  const double wanted = fmin(fmax(ceil(missing / each), 1.0), static_cast<double>(arena.ties));
  const auto wanted_ties = static_cast<int32_t>(wanted);
  KeepBorder out;
  out.key = prefix;
  out.last_id = nth_tie(arena, row, team, prefix, wanted_ties);
  return out;
}

/// FP32 estimate of the noise, within 1e-5; `exact` when u is too near 0 or 1 for one.
__device__ __forceinline__ float estimate_noise(const SamplingRow& p, int32_t id, bool& exact) {
  const numerics::PhiloxBlock random =
      numerics::philox4x32_10({{static_cast<uint32_t>(p.sample_index),
                                static_cast<uint32_t>(p.position),
                                static_cast<uint32_t>(id),
                                kSamplingStream}},
                              numerics::philox_key(p.seed));
  const uint32_t word = random.words[0];
  exact = word < 256U || word > 0xFFFFFEFFU;
  const float u = (static_cast<float>(word) + 0.5F) * 0x1p-32F;
  const float t = (static_cast<float>(~word) + 0.5F) * 0x1p-32F;  // 1 - u
  const float series = t * fmaf(t, fmaf(t, fmaf(t, fmaf(t, 0.2F, 0.25F), 0.33333334F), 0.5F), 1.0F);
  const float minus_log = t < 0.0625F ? series : -0.69314718F * __log2f(u);
  return -0.69314718F * __log2f(minus_log);
}

inline constexpr float kEstimateMargin = 1e-3F;

/// Best score of this block's leaves within the border; min-p applies too. `best` is exact z of the
/// largest logit, `largest` the logit.
__device__ inline Scored draw_wide(SamplingArena& arena,
                                   const RowLogits& row,
                                   const RowTeam& team,
                                   float largest,
                                   double best,
                                   KeepBorder border) {
  const SamplingRow& p = row.params;
  const float scale = fminf(__frcp_rn(p.temperature), 3.4e38F);
  const float least = p.min_p > 0.0F ? logf(p.min_p) : minus_infinity();
  // A sum z + g in double absorbs noise below its last place; ties then go to the lower id.
  const float margin = kEstimateMargin + static_cast<float>(fabs(best) * 0x1p-50);
  float lower_bound = minus_infinity();  // of the warp's best score, relative to `best`
  Scored mine = {0.0, -1};
  for (int leaf = team.first_leaf + sample_warp(); leaf < team.end_leaf; leaf += kSampleWarps) {
    const bool touched = row.touched(leaf);
    float4 raw = row.raw(leaf * kLeafGroups);
    for (int j = 0; j < kLeafGroups; ++j) {
      const int g = leaf * kLeafGroups + j;
      bool bad = false;
      const float4 x = row.group(g, raw, touched, bad);
      raw = row.raw(min(g + 1, row.num_leaves * kLeafGroups - 1));
      const float values[4] = {x.x, x.y, x.z, x.w};
      const int32_t first = g * kGroupColumns + sample_lane() * 4;
      float estimates[4];
      bool unsure = false;  // an estimate or a min-p border that needs double
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float distance = (values[c] - largest) * scale;
        bool near = false;
        const float sum = distance + estimate_noise(p, first + c, near);
        const bool kept = border.keeps(order_key(values[c]), first + c);
        unsure |= kept && (near || fabsf(distance - least) <= kEstimateMargin);
        estimates[c] = kept && distance >= least ? sum : minus_infinity();
      }
      if (unsure) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const double distance = row.z(values[c]) - best;
          const bool kept = border.keeps(order_key(values[c]), first + c) &&
                            !(p.min_p > 0.0F && exp(distance) < static_cast<double>(p.min_p));
          estimates[c] =
              kept ? static_cast<float>(distance + noise_of(p, first + c)) : minus_infinity();
        }
      }
      const float group_best =
          fmaxf(fmaxf(estimates[0], estimates[1]), fmaxf(estimates[2], estimates[3]));
      const float warp_bound =
          key_value(__reduce_max_sync(kAllLanes, order_key(group_best))) - margin;
      lower_bound = fmaxf(lower_bound, warp_bound);
      if (group_best > minus_infinity() && group_best + margin >= lower_bound) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          if (estimates[c] > minus_infinity() && estimates[c] + margin >= lower_bound) {
            const Scored score = {row.z(values[c]) + noise_of(p, first + c), first + c};
            mine = better(score, mine) ? score : mine;
          }
        }
      }
    }
  }
  return block_best(arena, mine);
}

}  // namespace baleen::kernels
