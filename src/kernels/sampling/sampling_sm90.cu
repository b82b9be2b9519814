#include <algorithm>

#include "base/check.h"
#include "device/launch.h"
#include "kernels/ptx/exp2.cuh"
#include "kernels/ptx/pdl.cuh"
#include "kernels/sampling/sampling_checks.h"
#include "kernels/sampling/wide_draw.cuh"

namespace baleen::kernels {
namespace {

/// log2(e) / temperature in two floats; a product with both keeps 40 bits. `low` is positive, so
/// that a difference of -inf stays one.
struct ExponentScale {
  float high;
  float low;
};
__device__ ExponentScale exponent_scale(float temperature) {
  const double exact = 1.4426950408889634 / (temperature == 0.0F ? 1.0 : temperature);
  if (exact > 1e6) {
    return {static_cast<float>(fmin(exact, 3.4e38)), 1e-30F};
  }
  const float high = __double2float_rd(exact);
  return {high, fmaxf(static_cast<float>(exact - high), 1e-30F)};
}
/// exp(d / temperature) for d <= 0.
__device__ __forceinline__ float scaled_exp(float d, ExponentScale scale) {
  return ptx::exp2_fast(__fmaf_rn(d, scale.high, __fmul_rn(d, scale.low)));
}

struct LeafSum {
  uint32_t my_key;  // of group `lane`, in the first lanes
  uint32_t key;     // largest of the leaf
  float sum;        // of exponentials relative to it
};

__device__ __forceinline__ LeafSum sum_leaf(const float4 (&x)[kLeafGroups], ExponentScale scale) {
  LeafSum out = {0, 0, 0.0F};
#pragma unroll
  for (int j = 0; j < kLeafGroups; ++j) {
    const float four = fmaxf(fmaxf(x[j].x, x[j].y), fmaxf(x[j].z, x[j].w));
    const uint32_t key = __reduce_max_sync(kAllLanes, order_key(four));
    out.my_key = sample_lane() == j ? key : out.my_key;
    out.key = max(out.key, key);
  }
  if (out.key <= kLowestKey) {
    return out;
  }
  const float largest = key_value(out.key);
  const auto term = [&](float value) { return scaled_exp(__fsub_rn(value, largest), scale); };
#pragma unroll
  for (int j = 0; j < kLeafGroups; ++j) {
    const float low = __fadd_rn(term(x[j].x), term(x[j].y));
    const float high = __fadd_rn(term(x[j].z), term(x[j].w));
    out.sum = __fadd_rn(out.sum, __fadd_rn(low, high));
  }
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    out.sum = __fadd_rn(out.sum, __shfl_xor_sync(kAllLanes, out.sum, distance));
  }
  return out;
}

/// First pass over this block's leaves: maxima of groups, maximum and sum of every leaf, to block
/// 0.
__device__ void scan_leaves(SamplingArena& arena, const RowLogits& row, const RowTeam& team) {
  const int lane = sample_lane();
  uint32_t* group_keys = ptx::peer_pointer(arena.group_keys, 0);
  float* leaf_max = ptx::peer_pointer(arena.leaf_max, 0);
  float* leaf_sum = ptx::peer_pointer(arena.leaf_sum, 0);
  int leaf = team.first_leaf + sample_warp();
  float4 raw[kLeafGroups];
  if (leaf < team.end_leaf) {
#pragma unroll
    for (int j = 0; j < kLeafGroups; ++j) {
      raw[j] = row.raw(leaf * kLeafGroups + j);
    }
  }
  __syncthreads();      // the rules are there
  ptx::cluster_wait();  // block 0 has started: its shared memory may be written
  const ExponentScale scale = exponent_scale(row.params.temperature);
  for (; leaf < team.end_leaf; leaf += kSampleWarps) {
    float4 next[kLeafGroups];
    if (leaf + kSampleWarps < team.end_leaf) {
#pragma unroll
      for (int j = 0; j < kLeafGroups; ++j) {
        next[j] = row.raw((leaf + kSampleWarps) * kLeafGroups + j);
      }
    }
    LeafSum sums = {0, 0, 0.0F};
    bool bad = false;
    bool done = row.is_plain(leaf);
    if (done) {  // a NaN shows in the sum, an infinity in the maximum
      sums = sum_leaf(raw, scale);
      done = sums.sum == sums.sum && sums.key > kLowestKey &&
             sums.key < order_key(__int_as_float(0x7F800000));
    }
    if (!done) {
      const bool touched = row.touched(leaf);
#pragma unroll
      for (int j = 0; j < kLeafGroups; ++j) {
        raw[j] = row.group(leaf * kLeafGroups + j, raw[j], touched, bad);
      }
      sums = sum_leaf(raw, scale);
      bad = __any_sync(kAllLanes, bad) != 0;
    }
    if (lane < kLeafGroups) {
      group_keys[leaf * kLeafGroups + lane] = sums.my_key;
    }
    if (lane == 0) {
      leaf_max[leaf] = key_value(sums.key);
      leaf_sum[leaf] = bad ? __int_as_float(0x7FC00000) : sums.sum;
    }
#pragma unroll
    for (int j = 0; j < kLeafGroups; ++j) {
      raw[j] = next[j];
    }
  }
}

struct RowSum {
  bool bad;
  float largest;  // -inf: nothing is left
  double best;    // its z
};

__device__ RowSum combine_leaves(SamplingArena& arena, const RowLogits& row) {
  const auto leaf = static_cast<int>(threadIdx.x);
  static_assert(kMostLeaves <= kSampleThreads);
  const bool exists = leaf < row.num_leaves;
  const float own_max = exists ? arena.leaf_max[leaf] : minus_infinity();
  const float own_sum = exists ? arena.leaf_sum[leaf] : 0.0F;
  RowSum out = {};
  uint32_t key = __reduce_max_sync(kAllLanes, order_key(own_max));
  if (sample_lane() == 0) {
    arena.counts[1][sample_warp()] = static_cast<int32_t>(key);
  }
  out.bad = __syncthreads_or(own_sum != own_sum) != 0;
  for (int w = 0; w < kSampleWarps; ++w) {
    key = max(key, static_cast<uint32_t>(arena.counts[1][w]));
  }
  out.largest = key_value(key);
  if (key <= kLowestKey) {
    return out;
  }
  out.best = row.z(out.largest);
  double part = 0.0;
  if (own_max > minus_infinity() && own_sum == own_sum) {
    const ExponentScale scale = exponent_scale(row.params.temperature);
    part = static_cast<double>(own_sum) * scaled_exp(__fsub_rn(own_max, out.largest), scale);
  }
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    part += __shfl_xor_sync(kAllLanes, part, distance);
  }
  if (sample_lane() == 0) {
    arena.partial[sample_warp()] = part;
  }
  return out;
}

/// Ends the sum; after a barrier behind combine_leaves. One thread, beside what the others do.
__device__ void finish_sum(SamplingArena& arena) {
  static_assert(kMostLeaves == 8 * 32);
  const double* p = arena.partial;  // of the warps that hold leaves
  arena.log_sum = log(((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7])));
}

__device__ float logprob_of(const RowLogits& row, double best, double log_sum, float x) {
  return static_cast<float>(row.z(x) - best - log_sum);
}

/// The best tokens of the row, from the sorted candidates.
__device__ int list_best(const SamplingArena& arena,
                         const SamplingBatch& batch,
                         const RowLogits& row,
                         const RowSum& sum,
                         int32_t r,
                         int count) {
  const int listed = min(min(row.params.num_top, kMostTopLogprobs), count);
  const auto i = static_cast<int>(threadIdx.x);
  if (batch.top_ids != nullptr && i < listed) {
    const uint64_t candidate = arena.sorted[i];
    batch.top_ids[int64_t{r} * kMostTopLogprobs + i] = candidate_id(candidate);
    batch.top_logprobs[int64_t{r} * kMostTopLogprobs + i] =
        logprob_of(row, sum.best, arena.log_sum, key_value(candidate_key(candidate)));
  }
  return listed;
}

/// One cluster per row; block 0 decides and writes.
__global__ void __launch_bounds__(kSampleThreads, 1)
    sample_rows_kernel(const __grid_constant__ SamplingBatch batch) {
  extern __shared__ __align__(16) uint8_t shared[];
  SamplingArena& arena = *reinterpret_cast<SamplingArena*>(shared);
  RowTeam team;
  team.rank = static_cast<int>(ptx::cluster_rank());
  team.size = static_cast<int>(ptx::cluster_size());
  const int32_t r = static_cast<int32_t>(blockIdx.x) / team.size;
  ptx::cluster_arrive();
  ptx::wait_for_predecessor();
  if (threadIdx.x == 0) {
    arena.rules.fill(batch, r);
  }
  const RowLogits row(batch, r, arena.rules);
  const SamplingRow& p = row.params;
  const int per_block = (row.num_leaves + team.size - 1) / team.size;
  team.first_leaf = min(team.rank * per_block, row.num_leaves);
  team.end_leaf = min(team.first_leaf + per_block, row.num_leaves);
  scan_leaves(arena, row, team);
  ptx::cluster_sync();

  const bool is_leader = team.rank == 0;
  const bool draws = p.forced_id < 0 && p.temperature != 0.0F;
  const bool is_narrow = p.top_k > 0 && p.top_k <= kNarrowTopK;
  RowSum sum = {};
  if (is_leader) {
    sum = combine_leaves(arena, row);
    bool fits = true;
    const bool any = sum.largest > minus_infinity();
    const int k = max(draws && is_narrow ? p.top_k : 1, min(p.num_top, kMostTopLogprobs));
    if (any) {
      const uint32_t bound = candidate_bound(arena, row, k);
      if (threadIdx.x == kSampleThreads - 1) {
        finish_sum(arena);
      }
      fits = gather_candidates(arena, row, bound);
    }
    if (threadIdx.x < static_cast<unsigned>(team.size)) {
      SamplingArena* peer = ptx::peer_pointer(&arena, threadIdx.x);
      peer->needs_select = fits ? 0 : 1;
      peer->select_k = k;
      peer->needs_wide = any && draws && !sum.bad && !is_narrow ? 1 : 0;
      peer->largest = sum.largest;
    }
    __syncthreads();
  }
  ptx::cluster_arrive();
  const bool leads_alone = is_leader && arena.needs_select == 0 && arena.needs_wide == 0;
  if (!leads_alone) {
    ptx::cluster_wait();
  }
  const double best = row.z(arena.largest);
  if (arena.needs_select != 0) {
    const KeepBorder border = find_border(arena,
                                          row,
                                          team,
                                          BorderKind::kCount,
                                          static_cast<uint32_t>(arena.select_k),
                                          best,
                                          KeepBorder{});
    if (is_leader) {
      gather_kept(arena, row, border);
    }
  }
  SampledRow out = {};
  if (is_leader) {
    out.status =
        static_cast<int32_t>(sum.bad ? SamplingStatus::kNotFinite : SamplingStatus::kDrawn);
    if (sum.largest > minus_infinity()) {
      if (draws && !sum.bad && is_narrow && arena.num_candidates <= kFewCandidates) {
        out.id = draw_few(arena, row, best);
        out.num_top = list_best(arena, batch, row, sum, r, arena.num_candidates);
      } else {
        const int count = sort_candidates(arena);
        out.num_top = list_best(arena, batch, row, sum, r, count);
        out.id = candidate_id(arena.sorted[0]);
        if (threadIdx.x == 0) {
          arena.chosen = key_value(candidate_key(arena.sorted[0]));
        }
        if (draws && !sum.bad && is_narrow) {
          out.id = draw_narrow(arena, row, min(p.top_k, count), best);
        }
        __syncthreads();
      }
    } else if (!sum.bad) {
      out.status = static_cast<int32_t>(SamplingStatus::kNoCandidate);
    }
  }
  if (arena.needs_wide != 0) {
    KeepBorder border;
    if (p.top_k > 0) {
      border = find_border(
          arena, row, team, BorderKind::kCount, static_cast<uint32_t>(p.top_k), best, border);
    }
    if (p.top_p < 1.0F) {
      border = find_border(arena, row, team, BorderKind::kMass, 0, best, border);
    }
    const Scored mine = draw_wide(arena, row, team, arena.largest, best, border);
    if (threadIdx.x == 0) {
      ptx::peer_pointer(arena.cluster_score, 0)[team.rank] = mine.score;
      ptx::peer_pointer(arena.cluster_id, 0)[team.rank] = mine.id;
    }
    ptx::cluster_sync();
    if (is_leader) {
      Scored drawn = {arena.cluster_score[0], arena.cluster_id[0]};
      for (int i = 1; i < team.size; ++i) {
        const Scored other = {arena.cluster_score[i], arena.cluster_id[i]};
        drawn = better(other, drawn) ? other : drawn;
      }
      out.id = drawn.id;
    }
  }
  if (is_leader && sample_warp() == 0) {
    float x = arena.chosen;
    if (p.forced_id >= 0) {
      out.id = p.forced_id;
    }
    if (out.status != static_cast<int32_t>(SamplingStatus::kNoCandidate)) {
      if (p.forced_id >= 0 || arena.needs_wide != 0) {
        x = row.at(out.id);
      }
      out.logprob = out.id >= 0 ? logprob_of(row, sum.best, arena.log_sum, x) : 0.0F;
    } else {
      out.id = -1;
    }
    if (sample_lane() == 0) {
      batch.sampled[r] = out;
    }
  }
  if (leads_alone) {
    ptx::cluster_wait();
  }
}

}  // namespace

void sample_rows_sm90(const SamplingBatch& batch,
                      device::StreamHandle stream,
                      int32_t blocks_per_row) {
  check_sampling_batch(batch);
  BALEEN_CHECK(
      blocks_per_row == 0 || blocks_per_row == 2 || blocks_per_row == 4 || blocks_per_row == 8,
      "blocks_per_row={}",
      blocks_per_row);
  if (batch.num_rows == 0) {
    return;
  }
  if (blocks_per_row == 0) {  // one block per multiprocessor, all rows at once where they fit
    blocks_per_row = batch.num_rows <= 16 ? 8 : batch.num_rows <= 32 ? 4 : 2;
  }
  BALEEN_CHECK(batch.vocab <= blocks_per_row * 65'536, "vocab={}", batch.vocab);  // mass limbs
  device::launch(stream,
                 {.grid = dim3(static_cast<unsigned>(batch.num_rows * blocks_per_row)),
                  .block = dim3(kSampleThreads),
                  .cluster = static_cast<unsigned>(blocks_per_row),
                  .shared_bytes = sizeof(SamplingArena)},
                 sample_rows_kernel,
                 batch);
}

}  // namespace baleen::kernels
