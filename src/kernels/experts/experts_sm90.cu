// The persistent expert kernel for Hopper: four consumer warp groups, their producer warps and
// their finisher warps per block, one block per multiprocessor.

#include <cstdint>

#include "base/check.h"
#include "device/launch.h"
#include "kernels/experts/expert_finisher.cuh"
#include "kernels/experts/expert_forms.h"
#include "kernels/experts/expert_items.cuh"
#include "kernels/experts/expert_producer.cuh"
#include "kernels/experts/expert_work.cuh"
#include "kernels/experts/experts.h"
#include "kernels/ptx/pdl.cuh"
#include "kernels/ptx/prefetch.cuh"
#include "kernels/ptx/role_registers.cuh"

namespace baleen::kernels {
namespace experts {
namespace {

/// With finishers, or for small steps without; those with hidden rows as words or without.
template <bool kFinishers>
struct Form {
  static constexpr int kThreads = kGroups * (128 + 32 + (kFinishers ? 32 : 0));
  static constexpr int kFew = kFinishers ? kFewTokens : 1;  // see consume
};
// Registers of the roles beside finishers, within what the launch gives all of them.
constexpr int kConsumerRegisters = 96;
constexpr int kOtherRegisters = 48;
static_assert(128 * (kGroups * kConsumerRegisters + 2 * kOtherRegisters) <=
              65536 / Form<true>::kThreads / 8 * 8 * Form<true>::kThreads);

/// Brings the activations of the whole step to L2 while the lists are being read.
__device__ __forceinline__ void request_inputs(const ExpertsParams& params) {
  const int64_t at =
      (static_cast<int64_t>(blockIdx.x) * (kGroups * 128) + threadIdx.x) * 128;  // bytes
  const int64_t codes = static_cast<int64_t>(params.num_tokens) * params.hidden;
  if (at < codes) {
    ptx::prefetch_l2(params.x_codes + at);
  }
  if (at < codes / 128) {
    ptx::prefetch_l2(params.x_scales + at);
  }
}

__device__ __forceinline__ void prepare(BlockShared& shared) {
  const auto slot = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x < kGroups * 32) {
    GroupShared& group = shared.groups[threadIdx.x / 32];
    if (slot < kStages) {
      ptx::barrier_init(&group.full[slot], 1);
      ptx::barrier_init(&group.empty[slot], 4);
    }
    if (slot < kQueue) {
      ptx::barrier_init(&group.announced[slot], 1);
      ptx::barrier_init(&group.stored[slot], 4);
      ptx::barrier_init(&group.read[slot], 1);
    }
    if (threadIdx.x == 0) {
      ptx::barrier_init(&shared.tile.full, kGroups * 4);
    }
    ptx::fence_barrier_init();
  }
  if (threadIdx.x == 0) {
    shared.up_issued = 0;
  }
}

template <bool kFinishers, bool kWords>
__global__ void __launch_bounds__(Form<kFinishers>::kThreads, 1)
    experts_kernel(const __grid_constant__ Task task) {
  extern __shared__ __align__(1024) uint8_t memory[];
  BlockShared& shared = *reinterpret_cast<BlockShared*>(memory);
  prepare(shared);
  ptx::wait_for_predecessor();
  // The same in every lane, and known to be: addresses derived from it stay in uniform registers.
  const int index = __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x) / 128, 0);
  FirstUnit first = {};
  if (index == kGroups) {
    first = request_first_unit(task);
  } else if (index < kGroups) {
    request_inputs(task.params);
  }
  __syncthreads();
  const int warp = __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x) / 32, 0) % kGroups;
  constexpr int kFew = Form<kFinishers>::kFew;
  if constexpr (!kFinishers) {
    if (index == kGroups) {
      produce<kFinishers>(task, shared, warp, first);
    } else {
      consume<true, kWords, kFew>(task, shared, index);
    }
  } else if (index < kGroups) {
    ptx::grow_registers<kConsumerRegisters>();
    consume<false, false, kFew>(task, shared, index);
  } else if (index == kGroups) {
    ptx::shrink_registers<kOtherRegisters>();
    produce<kFinishers>(task, shared, warp, first);
  } else {
    ptx::shrink_registers<kOtherRegisters>();
    finish(task, shared.groups[warp], warp);
  }
}

template <bool kFinishers, bool kWords>
void launch(const Task& task, int blocks, device::StreamHandle stream) {
  device::launch(stream,
                 {.grid = dim3(static_cast<unsigned>(blocks)),
                  .block = dim3(Form<kFinishers>::kThreads),
                  .shared_bytes = sizeof(BlockShared),
                  .programmatic = task.params.programmatic},
                 experts_kernel<kFinishers, kWords>,
                 task);
}

}  // namespace
}  // namespace experts

void launch_experts(const ExpertsParams& params, device::StreamHandle stream) {
  BALEEN_CHECK(experts_supported(params),
               "tokens={} hidden={} width={} slots={} experts={} leaf_blocks={}",
               params.num_tokens,
               params.hidden,
               params.width,
               params.slots,
               params.num_experts,
               params.leaf_blocks);
  if (params.num_tokens == 0) {
    return;
  }
  if (experts::solo_supported(params)) {
    experts::launch_solo(params, stream);
  } else {
    experts::launch_persistent(params, stream);
  }
}

void experts::launch_persistent(const ExpertsParams& params, device::StreamHandle stream) {
  int device = 0;
  int blocks = 0;
  BALEEN_CUDA_CHECK(cudaGetDevice(&device));
  BALEEN_CUDA_CHECK(cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, device));
  const ExpertsWorkspace place = experts_workspace(params);
  auto* base = static_cast<std::byte*>(params.workspace);
  experts::Task task{};
  task.params = params;
  task.next_item = reinterpret_cast<int32_t*>(base);
  task.ready = reinterpret_cast<int32_t*>(base + place.ready);
  task.done = reinterpret_cast<int32_t*>(base + place.done);
  task.max_units =
      static_cast<int32_t>(max_expert_units(params.num_tokens,
                                            params.slots - (params.shared_up != nullptr ? 1 : 0),
                                            params.num_experts,
                                            params.shared_up != nullptr));
  task.hidden_rows = reinterpret_cast<uint16_t*>(base + place.hidden_rows);
  task.hidden_words = reinterpret_cast<uint16_t*>(base + place.hidden_words);
  task.slot_rows = base + place.slot_rows;
  experts::plan_task(task, blocks);
  // Measured: with up to four up tiles per worker, if every unit there may be comes, the form
  // without finishers is quicker (and much so with few units), beyond it is not.
  if (!small_expert_step(params)) {
    experts::launch<true, false>(task, blocks, stream);
  } else if (place.counter_bytes > place.hidden_words) {
    experts::launch<false, true>(task, blocks, stream);
  } else {
    experts::launch<false, false>(task, blocks, stream);
  }
}

}  // namespace baleen::kernels
