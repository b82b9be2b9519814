// What it costs to pass work on: between kernels of a graph, blocks of a grid, blocks of a cluster.
#include "base/check.h"
#include "device/launch.h"
#include "kernels/ceilings/ceilings.h"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/global_counter.cuh"
#include "kernels/ptx/pdl.cuh"

namespace baleen::kernels {
namespace {

constexpr int kGridBlocks = 132;

__global__ void __launch_bounds__(128) handover() {
  ptx::release_successor();
  ptx::wait_for_predecessor();
}

/// The counter runs to 132 * rounds and is put back by the last block out.
__global__ void __launch_bounds__(128) grid_barriers(GridBarrierParams params) {
  for (int round = 1; round <= params.rounds; ++round) {
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence();
      atomicAdd(params.counter, 1U);
      const uint32_t target = static_cast<uint32_t>(kGridBlocks) * static_cast<uint32_t>(round);
      ptx::wait_or_trap([&] {
        const int32_t seen = ptx::load_acquire(reinterpret_cast<const int32_t*>(params.counter));
        return static_cast<uint32_t>(seen) >= target;
      });
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    const uint32_t everybody =
        static_cast<uint32_t>(kGridBlocks) * static_cast<uint32_t>(params.rounds + 1);
    if (atomicAdd(params.counter, 1U) + 1 == everybody) {
      *params.counter = 0;
    }
  }
}

__global__ void __launch_bounds__(256) cluster_barriers(ClusterBarrierParams params) {
  __shared__ float values[2][32];
  float sum = static_cast<float>(threadIdx.x);
  for (int round = 0; round < params.rounds; ++round) {
    float* mine = values[round % 2];
    if (params.exchange && threadIdx.x < 32) {
      mine[threadIdx.x] = sum;
    }
    ptx::cluster_sync();
    if (params.exchange && threadIdx.x < 32) {
      for (uint32_t rank = 0; rank < ptx::cluster_size(); ++rank) {
        sum += ptx::peer_pointer(mine, rank)[threadIdx.x];
      }
    }
  }
  ptx::cluster_sync();
  if (sum == 1.2345e30F) {
    *params.sink = sum;
  }
}

}  // namespace

void launch_handover(const HandoverParams& params, device::StreamHandle stream) {
  device::launch(stream,
                 {.grid = dim3(static_cast<unsigned>(params.blocks)),
                  .block = dim3(128),
                  .programmatic = params.programmatic},
                 handover);
}

void launch_grid_barriers(const GridBarrierParams& params, device::StreamHandle stream) {
  device::launch(stream, {.grid = dim3(kGridBlocks), .block = dim3(128)}, grid_barriers, params);
}

void launch_cluster_barriers(const ClusterBarrierParams& params, device::StreamHandle stream) {
  BALEEN_CHECK(params.cluster >= 1 && params.cluster <= 16, "cluster={}", params.cluster);
  device::launch(stream,
                 {.grid = dim3(static_cast<unsigned>(params.cluster)),
                  .block = dim3(256),
                  .cluster = static_cast<unsigned>(params.cluster)},
                 cluster_barriers,
                 params);
}

}  // namespace baleen::kernels
