#pragma once
// Body of the list builder for one block, shared by its own launch and by the router's last block.
// Every warp owns a contiguous part of the entries: it counts them per expert, then one scan over
// experts and warps gives each part its ranks, then the warp places its entries in order.

#include <cstdint>

#include "kernels/experts/expert_lists.h"

namespace baleen::kernels::experts {

inline constexpr int kListWarps = 8;
inline constexpr int kListThreads = 32 * kListWarps;
static_assert(kMaxListExperts == 2 * kListThreads);

struct ListShared {
  int32_t counts[kListWarps][kMaxListExperts];  // then the next rank of each warp's part
  int32_t first_unit[kMaxListExperts];
  int32_t warp_entries[kListWarps];
  int32_t warp_units[kListWarps];
};

/// Exclusive prefix of `value` over the block's threads.
__device__ __forceinline__ int32_t block_prefix(int32_t value, int32_t* warp_sums, int32_t* total) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  int32_t inclusive = value;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int32_t below = __shfl_up_sync(0xFFFFFFFFU, inclusive, static_cast<unsigned>(distance));
    inclusive += lane >= distance ? below : 0;
  }
  if (lane == 31) {
    warp_sums[warp] = inclusive;
  }
  __syncthreads();
  int32_t before = 0;
  *total = 0;
  for (int w = 0; w < kListWarps; ++w) {
    before += w < warp ? warp_sums[w] : 0;
    *total += warp_sums[w];
  }
  return before + inclusive - value;
}

/// All kListThreads threads of a block. Reads routes and weights past L1: they may be this grid's.
__device__ __forceinline__ void build_lists(const ExpertListsParams& params, ListShared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int32_t slots = params.top + (params.shared_expert ? 1 : 0);
  const int32_t routed = params.num_tokens * params.top;
  for (int i = thread; i < kListWarps * kMaxListExperts; i += kListThreads) {
    shared.counts[i / kMaxListExperts][i % kMaxListExperts] = 0;
  }
  __syncthreads();
  const int32_t part = (routed + kListThreads - 1) / kListThreads * 32;  // whole rows of lanes
  const int32_t begin = min(warp * part, routed);
  const int32_t end = min(begin + part, routed);
  for (int32_t i = begin + lane; i < end; i += 32) {
    const int32_t expert = __ldcg(params.routes + i);
    if (expert < 0 || expert >= params.num_experts) {
      __trap();
    }
    atomicAdd(&shared.counts[warp][expert], 1);
  }
  __syncthreads();
  // Thread e owns experts 2e and 2e + 1.
  int32_t total[2];
  int32_t units[2];
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    total[k] = 0;
    for (int w = 0; w < kListWarps; ++w) {
      total[k] += shared.counts[w][2 * thread + k];
    }
    units[k] = (total[k] + kExpertUnitTokens - 1) / kExpertUnitTokens;
  }
  int32_t all_entries;
  int32_t all_units;
  int32_t place = block_prefix(total[0] + total[1], shared.warp_entries, &all_entries);
  int32_t unit = block_prefix(units[0] + units[1], shared.warp_units, &all_units);
  const int32_t shared_units =
      params.shared_expert ? (params.num_tokens + kExpertUnitTokens - 1) / kExpertUnitTokens : 0;
  unit += shared_units;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int expert = 2 * thread + k;
    int32_t rank = 0;
    for (int w = 0; w < kListWarps; ++w) {
      const int32_t count = shared.counts[w][expert];
      shared.counts[w][expert] = rank;
      rank += count;
    }
    shared.first_unit[expert] = unit;
    for (int32_t u = 0; u < units[k]; ++u) {
      const int32_t first = u * kExpertUnitTokens;
      params.lists.units[unit + u] = {
          expert, place + first, min(kExpertUnitTokens, total[k] - first), 0, {}, {}};
    }
    place += total[k];
    unit += units[k];
  }
  for (int32_t u = thread; u < shared_units; u += kListThreads) {
    const int32_t first = u * kExpertUnitTokens;
    ExpertUnit all{params.num_experts,
                   routed + first,
                   min(kExpertUnitTokens, params.num_tokens - first),
                   0,
                   {},
                   {}};
    for (int32_t i = 0; i < kExpertUnitTokens; ++i) {
      all.entries[i] = i < all.count ? (first + i) * slots + params.top : 0;
      all.weights[i] = i < all.count ? 1.0F : 0.0F;
    }
    params.lists.units[u] = all;
  }
  if (thread == 0) {
    *params.lists.num_units = all_units + shared_units;
  }
  __syncthreads();
  for (int32_t i = begin + lane; i - lane < end; i += 32) {
    const bool valid = i < end;
    const int32_t expert = valid ? __ldcg(params.routes + i) : -1;
    const uint32_t same = __match_any_sync(0xFFFFFFFFU, expert);
    const int rank = __popc(same & ((1U << lane) - 1U));
    if (valid) {
      const int32_t at = shared.counts[warp][expert] + rank;
      ExpertUnit& to = params.lists.units[shared.first_unit[expert] + at / kExpertUnitTokens];
      to.entries[at % kExpertUnitTokens] = i / params.top * slots + i % params.top;
      to.weights[at % kExpertUnitTokens] = __ldcg(params.weights + i);
    }
    __syncwarp();
    if (valid && rank == 0) {
      shared.counts[warp][expert] += __popc(same);
    }
    __syncwarp();
  }
}

}  // namespace baleen::kernels::experts
