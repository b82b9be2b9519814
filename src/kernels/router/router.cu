// One warp per token, any GPU with 32-lane warps; the last block builds the lists.
#include <cmath>

#include "base/check.h"
#include "device/launch.h"
#include "kernels/experts/expert_lists.cuh"
#include "kernels/ptx/pdl.cuh"
#include "kernels/router/router.h"

namespace baleen::kernels {
namespace {

constexpr uint32_t kAll = 0xFFFFFFFFU;
constexpr int kTokens = experts::kListWarps;  // per block, one warp each

__device__ __forceinline__ float score_of(float z) {
  return sqrtf(z > 20.0F ? z : log1pf(expf(z)));
}

/// Larger for what is chosen first: score order with NaN last, then the lower id.
__device__ __forceinline__ uint64_t rank_key(float ranked, int id) {
  const uint32_t bits = __float_as_uint(ranked == 0.0F ? 0.0F : ranked);  // -0 ties with 0
  uint32_t order = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  order = isnan(ranked) ? 0U : order;
  return (static_cast<uint64_t>(order) << 32) | (0xFFFFFFFFU - static_cast<uint32_t>(id));
}

__device__ __forceinline__ uint64_t warp_largest(uint64_t key) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const uint64_t other = __shfl_xor_sync(kAll, key, distance);
    key = other > key ? other : key;
  }
  return key;
}

/// Lane i < top returns the i-th choice by score.
template <int kPerLane>
__device__ __forceinline__ int choose_by_score(const RouterParams& params, const float* logits) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint64_t keys[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int id = i * 32 + lane;
    keys[i] = 0;
    if (id < params.num_experts) {
      keys[i] =
          rank_key(score_of(logits[id]) + (params.bias != nullptr ? params.bias[id] : 0.0F), id);
    }
  }
  int chosen = 0;
  for (int round = 0; round < params.top; ++round) {
    uint64_t best = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      best = keys[i] > best ? keys[i] : best;
    }
    best = warp_largest(best);
    const int id = static_cast<int>(0xFFFFFFFFU - static_cast<uint32_t>(best));
    chosen = lane == round ? id : chosen;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      keys[i] = keys[i] == best ? 0 : keys[i];
    }
  }
  return chosen;
}

__device__ void route_token(const RouterParams& params, int64_t token) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float* logits = params.logits + token * params.num_experts;
  int id = 0;
  if (params.table != nullptr) {
    if (lane < params.top) {
      id = params.table[static_cast<int64_t>(params.token_ids[token]) * params.top + lane];
      if (id < 0 || id >= params.num_experts) {
        __trap();
      }
    }
  } else if (params.num_experts <= 256) {
    id = choose_by_score<8>(params, logits);
  } else {
    id = choose_by_score<16>(params, logits);
  }
  // Place in ascending order, equal ids by slot; then lane i holds the i-th.
  int place = 0;
  for (int i = 0; i < params.top; ++i) {
    const int other = __shfl_sync(kAll, id, i);
    place += other < id || (other == id && i < lane) ? 1 : 0;
  }
  int sorted = 0;
  for (int i = 0; i < params.top; ++i) {
    const int at = __shfl_sync(kAll, place, i);
    const int value = __shfl_sync(kAll, id, i);
    sorted = at == lane ? value : sorted;
  }
  const float score = lane < params.top ? score_of(logits[sorted]) : 0.0F;
  float sum = 0.0F;
  for (int i = 0; i < params.top; ++i) {
    sum += __shfl_sync(kAll, score, i);
  }
  if (lane < params.top) {
    const int64_t at = token * params.top + lane;
    params.routes[at] = sorted;
    params.weights[at] = sum == 0.0F ? params.scale / static_cast<float>(params.top)
                                     : params.scale * score / (sum + params.eps);
    if (params.record != nullptr) {
      const int64_t to = token * params.record_stride + lane;
      if (params.num_experts <= 256) {
        static_cast<uint8_t*>(params.record)[to] = static_cast<uint8_t>(sorted);
      } else {
        static_cast<uint16_t*>(params.record)[to] = static_cast<uint16_t>(sorted);
      }
    }
  }
}

__global__ void __launch_bounds__(experts::kListThreads)
    router_kernel(const RouterParams params, const ExpertListsParams lists) {
  __shared__ experts::ListShared shared;
  __shared__ bool last;
  ptx::wait_for_predecessor();
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kTokens + threadIdx.x / 32;
  if (token < params.num_tokens) {
    route_token(params, token);
  }
  if (lists.lists.num_units == nullptr) {
    return;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(params.counter, 1) == static_cast<int32_t>(gridDim.x) - 1;
    __threadfence();
    if (last) {
      *params.counter = 0;
    }
  }
  __syncthreads();
  if (last) {
    experts::build_lists(lists, shared);
  }
}

}  // namespace

void launch_router(const RouterParams& params, device::StreamHandle stream) {
  const ExpertListsParams lists{.routes = params.routes,
                                .weights = params.weights,
                                .num_tokens = params.num_tokens,
                                .top = params.top,
                                .num_experts = params.num_experts,
                                .shared_expert = params.shared_expert,
                                .lists = params.lists};
  check_list_sizes(lists);
  BALEEN_CHECK(params.top <= params.num_experts && (params.table == nullptr || params.token_ids),
               "top={} experts={}",
               params.top,
               params.num_experts);
  const bool with_lists = params.lists.num_units != nullptr;
  BALEEN_CHECK(!with_lists || params.counter != nullptr,
               "lists need a counter, tokens={}",
               params.num_tokens);
  if (params.num_tokens == 0 && !with_lists) {
    return;
  }
  const int32_t blocks = params.num_tokens > 0 ? (params.num_tokens + kTokens - 1) / kTokens : 1;
  device::launch(stream,
                 {.grid = dim3(static_cast<unsigned>(blocks)),
                  .block = dim3(experts::kListThreads),
                  .programmatic = params.programmatic},
                 router_kernel,
                 params,
                 lists);
}

}  // namespace baleen::kernels
