// One token: a cluster of sixteen blocks per expert, see expert_solo.cuh.

#include <cstdint>

#include "base/check.h"
#include "device/launch.h"
#include "device/resident_clusters.h"
#include "kernels/experts/expert_forms.h"
#include "kernels/experts/expert_solo.cuh"
#include "kernels/experts/expert_solo_roles.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/pdl.cuh"
#include "kernels/ptx/remote_arrive.cuh"
#include "kernels/ptx/role_registers.cuh"

namespace baleen::kernels::experts {
namespace solo {
namespace {

constexpr int kProducer = kGroups * 4;  // warp
constexpr int kFinisher = kProducer + 1;

/// One thread of each warp, each with addresses that are the same in its warp: lanes with addresses
/// of their own would take turns.
__device__ __forceinline__ void prepare(Shared& shared, const ExpertsParams& params, int warp) {
  if (threadIdx.x % 32 != 0) {
    return;
  }
  if (warp < kProducer) {
    Group& group = shared.groups[warp / 4];
    if (warp % 4 == 0) {
#pragma unroll
      for (int i = 0; i < kRing; ++i) {
        ptx::barrier_init(&group.full[i], 1);
      }
    } else if (warp % 4 == 1) {
#pragma unroll
      for (int i = 0; i < kRing; ++i) {
        ptx::barrier_init(&group.empty[i], 4);
      }
    } else if (warp % 4 == 2) {
      ptx::barrier_init(&group.x_full, 1);
    }
  } else if (warp == kFinisher) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      ptx::barrier_init(&shared.leaves_full[i], kGroups * 4);
      ptx::barrier_init(&shared.leaves_read[i], 1);
    }
    ptx::barrier_init(&shared.inbox_full, 1);
  }
  ptx::fence_barrier_init();
  if (warp == kFinisher) {
    ptx::barrier_expect_bytes(&shared.inbox_full, static_cast<uint32_t>(params.width) * 2);
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    experts_solo_kernel(const __grid_constant__ Task task) {
  extern __shared__ __align__(1024) uint8_t solo_memory[];
  Shared& shared = *reinterpret_cast<Shared*>(solo_memory);
  const ExpertsParams& params = task.params;
  const auto rank = static_cast<int32_t>(ptx::cluster_rank());
  const int32_t place = static_cast<int32_t>(blockIdx.x) / kCluster;
  const int warp = __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x) / 32, 0);
  prepare(shared, params, warp);
  __syncwarp();
  ptx::cluster_arrive_relaxed();
  ptx::wait_for_predecessor();
  const EntryGuess guess = request_entry(params.lists, place);
  __syncthreads();
  const Entry entry = find_entry(params.lists, place, guess);
  ptx::cluster_wait();
  if (entry.expert < 0) {  // the same in the whole cluster
    return;
  }
  if (warp < kProducer) {
    ptx::grow_registers<kConsumerRegisters>();
    consume(task, shared, warp / 4, rank, entry.slot);
  } else {
    ptx::shrink_registers<kOtherRegisters>();
    if (warp == kProducer && threadIdx.x % 32 == 0) {
      produce(task, shared, rank, entry.expert);
    } else if (warp == kFinisher) {
      finish_up(task, shared, rank, place, entry.weight);
    }
  }
}

device::LaunchShape launch_shape(const ExpertsParams& params) {
  return {.grid = dim3(static_cast<unsigned>(params.slots * kCluster)),
          .block = dim3(kThreads),
          .cluster = kCluster,
          .shared_bytes = sizeof(Shared),
          .programmatic = params.programmatic};
}

}  // namespace
}  // namespace solo

bool solo_supported(const ExpertsParams& params) {
  if (params.num_tokens != 1 || params.shared_up != nullptr || params.width > solo::kMostWidth) {
    return false;
  }
  if (params.num_experts < params.slots) {
    return false;  // clusters read the unit of their number before they know how many there are
  }
  static const int clusters =
      device::resident_clusters(solo::experts_solo_kernel, solo::launch_shape(params));
  return params.slots <= clusters;
}

void launch_solo(const ExpertsParams& params, device::StreamHandle stream) {
  const ExpertsWorkspace place = experts_workspace(params);
  auto* base = static_cast<std::byte*>(params.workspace);
  const int32_t up_blocks = params.hidden / kExpertBlockInputs;
  const int32_t leaf = (up_blocks + kUpLeaves - 1) / kUpLeaves;
  const solo::Task task{.params = params,
                        .plan = {.up_tiles = 2 * params.width / kExpertTileRows,
                                 .up_blocks = up_blocks,
                                 .leaf = leaf,
                                 .leaves = (up_blocks + leaf - 1) / leaf,
                                 .down_tiles = params.hidden / kExpertTileRows,
                                 .down_blocks = params.width / kExpertBlockInputs},
                        .done = reinterpret_cast<int32_t*>(base + place.done),
                        .hidden_rows = reinterpret_cast<uint16_t*>(base + place.hidden_rows),
                        .slot_rows = base + place.slot_rows};
  device::launch(stream, solo::launch_shape(params), solo::experts_solo_kernel, task);
}

}  // namespace baleen::kernels::experts
