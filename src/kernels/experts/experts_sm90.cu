// The persistent expert kernel for Hopper: four consumer warp groups and their producer warps per
// block, one block per multiprocessor.

#include <cstdint>

#include "base/check.h"
#include "device/launch.h"
#include "kernels/experts/expert_items.cuh"
#include "kernels/experts/expert_producer.cuh"
#include "kernels/experts/expert_work.cuh"
#include "kernels/experts/experts.h"
#include "kernels/ptx/global_counter.cuh"
#include "kernels/ptx/pdl.cuh"
#include "kernels/ptx/prefetch.cuh"

namespace baleen::kernels {
namespace experts {
namespace {

constexpr int kThreads = kGroups * 160;  // a warp group and a producer warp each

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
      ptx::barrier_init(&group.read[slot], 4);
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

/// The last block to end, when all others are past their last access, leaves everything zero.
__device__ __forceinline__ void clean_up(const Task& task, BlockShared& shared) {
  __syncthreads();
  if (threadIdx.x == 0) {
    shared.last =
        ptx::add_acquire_release(task.exits, 1) == static_cast<int32_t>(gridDim.x) - 1 ? 1 : 0;
  }
  __syncthreads();
  if (shared.last == 0) {
    return;
  }
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t units = __ldcg(task.params.lists.num_units);
  for (int32_t i = thread; i < units; i += kThreads) {
    task.ready[i] = 0;
  }
  if (thread == 0) {
    *task.next_item = 0;
    *task.exits = 0;
  }
}

__global__ void __launch_bounds__(kThreads, 1) experts_kernel(const __grid_constant__ Task task) {
  extern __shared__ __align__(1024) uint8_t memory[];
  BlockShared& shared = *reinterpret_cast<BlockShared*>(memory);
  prepare(shared);
  ptx::wait_for_predecessor();
  // The same in every lane, and known to be: addresses derived from it stay in uniform registers.
  const int index = __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x) / 128, 0);
  FirstUnit first = {};
  if (index == kGroups) {
    first = request_first_unit(task);
  } else {
    request_inputs(task.params);
  }
  __syncthreads();
  if (index == kGroups) {
    produce(task,
            shared,
            __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x) / 32, 0) - 4 * kGroups,
            first);
  } else {
    consume(task, shared, index);
  }
  clean_up(task, shared);
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
  int device = 0;
  int blocks = 0;
  BALEEN_CUDA_CHECK(cudaGetDevice(&device));
  BALEEN_CUDA_CHECK(cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, device));
  const ExpertsWorkspace place = experts_workspace(params);
  auto* base = static_cast<std::byte*>(params.workspace);
  experts::Task task{};
  task.params = params;
  task.next_item = reinterpret_cast<int32_t*>(base);
  task.exits = reinterpret_cast<int32_t*>(base + 64);
  task.ready = reinterpret_cast<int32_t*>(base + place.ready);
  task.done = reinterpret_cast<int32_t*>(base + place.done);
  task.max_units =
      static_cast<int32_t>(max_expert_units(params.num_tokens,
                                            params.slots - (params.shared_up != nullptr ? 1 : 0),
                                            params.num_experts,
                                            params.shared_up != nullptr));
  task.hidden_rows = reinterpret_cast<uint16_t*>(base + place.hidden_rows);
  task.slot_rows = base + place.slot_rows;
  device::launch(stream,
                 {.grid = dim3(static_cast<unsigned>(blocks)),
                  .block = dim3(experts::kThreads),
                  .shared_bytes = sizeof(experts::BlockShared),
                  .programmatic = params.programmatic},
                 experts::experts_kernel,
                 task);
}

}  // namespace baleen::kernels
