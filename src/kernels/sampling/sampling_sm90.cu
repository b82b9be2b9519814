#include <algorithm>

#include "base/check.h"
#include "device/launch.h"
#include "kernels/ptx/exp2.cuh"
#include "kernels/ptx/pdl.cuh"
#include "kernels/sampling/sampling_checks.h"
#include "kernels/sampling/wide_draw.cuh"

namespace baleen::kernels {
namespace {

/// log2(e) / temperature in two floats; a product with both keeps 40 bits.
struct ExponentScale {
  float high;
  float low;
};
__device__ ExponentScale exponent_scale(float temperature) {
  const double exact = 1.4426950408889634 / (temperature == 0.0F ? 1.0 : temperature);
  if (exact > 1e6) {
    return {static_cast<float>(fmin(exact, 3.4e38)), 0.0F};
  }
  const auto high = static_cast<float>(exact);
  return {high, static_cast<float>(exact - high)};
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
    const bool touched = row.touched(leaf);
    bool bad = false;
    uint32_t my_key = 0;
    uint32_t leaf_key = 0;
#pragma unroll
    for (int j = 0; j < kLeafGroups; ++j) {
      raw[j] = row.group(leaf * kLeafGroups + j, raw[j], touched, bad);
      const float four = fmaxf(fmaxf(raw[j].x, raw[j].y), fmaxf(raw[j].z, raw[j].w));
      const uint32_t key = __reduce_max_sync(kAllLanes, order_key(four));
      my_key = lane == j ? key : my_key;
      leaf_key = max(leaf_key, key);
    }
    const float largest = key_value(leaf_key);
    float sum = 0.0F;
    if (leaf_key > kLowestKey) {
      const auto term = [&](float x) {
        const float d = fmaxf(__fsub_rn(x, largest), -3e38F);
        return ptx::exp2_fast(__fmaf_rn(d, scale.high, __fmul_rn(d, scale.low)));
      };
#pragma unroll
      for (int j = 0; j < kLeafGroups; ++j) {
        const float low = __fadd_rn(term(raw[j].x), term(raw[j].y));
        const float high = __fadd_rn(term(raw[j].z), term(raw[j].w));
        sum = __fadd_rn(sum, __fadd_rn(low, high));
      }
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, distance));
      }
    }
    bad = __any_sync(kAllLanes, bad) != 0;
    if (lane < kLeafGroups) {
      group_keys[leaf * kLeafGroups + lane] = my_key;
    }
    if (lane == 0) {
      leaf_max[leaf] = largest;
      leaf_sum[leaf] = bad ? __int_as_float(0x7FC00000) : sum;
    }
#pragma unroll
    for (int j = 0; j < kLeafGroups; ++j) {
      raw[j] = next[j];
    }
  }
}

struct RowSum {
  bool bad;
  float largest;   // -inf: nothing is left
  double best;     // its z
  double log_sum;  // of exp(z - best)
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
    arena.counts[0][sample_warp()] = static_cast<int32_t>(key);
  }
  out.bad = __syncthreads_or(own_sum != own_sum) != 0;
  for (int w = 0; w < kSampleWarps; ++w) {
    key = max(key, static_cast<uint32_t>(arena.counts[0][w]));
  }
  out.largest = key_value(key);
  if (key <= kLowestKey) {
    return out;
  }
  out.best = row.z(out.largest);
  double part = 0.0;
  if (own_max > minus_infinity() && own_sum == own_sum) {
    part = static_cast<double>(own_sum) * exp(row.z(own_max) - out.best);
  }
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    part += __shfl_xor_sync(kAllLanes, part, distance);
  }
  if (sample_lane() == 0) {
    arena.partial[sample_warp()] = part;
  }
  __syncthreads();
  const double* p = arena.partial;
  out.log_sum = log(((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7])));
  return out;
}

__device__ float logprob_of(const RowLogits& row, const RowSum& sum, float x) {
  return static_cast<float>(row.z(x) - sum.best - sum.log_sum);
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
        logprob_of(row, sum, key_value(candidate_key(candidate)));
  }
  return listed;
}

/// One cluster per row; block 0 decides and writes.
__global__ void __launch_bounds__(kSampleThreads, 2)
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
      fits = gather_candidates(arena, row, candidate_bound(arena, row, k));
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
      const int count = sort_candidates(arena);
      out.num_top = list_best(arena, batch, row, sum, r, count);
      out.id = candidate_id(arena.sorted[0]);
      arena.chosen = key_value(candidate_key(arena.sorted[0]));
      if (draws && !sum.bad && is_narrow) {
        out.id = draw_narrow(arena, row, min(p.top_k, count), best);
        for (int i = static_cast<int>(threadIdx.x); i < count; i += kSampleThreads) {
          if (candidate_id(arena.sorted[i]) == out.id) {
            arena.chosen = key_value(candidate_key(arena.sorted[i]));
          }
        }
      }
      __syncthreads();
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
      out.logprob = out.id >= 0 ? logprob_of(row, sum, x) : 0.0F;
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
  if (blocks_per_row == 0) {  // two blocks fit on a multiprocessor
    blocks_per_row = batch.num_rows <= 33 ? 8 : batch.num_rows <= 66 ? 4 : 2;
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
