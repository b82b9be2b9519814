#pragma once
// The kernel around linear_direct.cuh and its launch. Included by the files that instantiate one
// token tile each, so that they build in parallel.

#include "device/launch.h"
#include "kernels/linear/linear_direct.cuh"

namespace baleen::kernels {

template <int kTokens, int kSplit>
__global__ void __launch_bounds__(128 * kMostDirectGroups, 1)
    direct_linear_kernel(const __grid_constant__ DirectDeviceParams params) {
  extern __shared__ __align__(1024) uint8_t shared[];
  linear_body::Direct<kTokens, kSplit> direct(params, shared);
  direct.run();
}

template <int kTokens, int kSplit>
void start_direct_form(const DirectDeviceParams& params,
                       const DirectPlan& plan,
                       device::StreamHandle stream) {
  const device::LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(plan.blocks)),
      .block = dim3(static_cast<unsigned>(128 * plan.warp_groups)),
      .shared_bytes = std::size_t{DirectForm<kTokens, kSplit>::shared_bytes(params.tiles_per_row)}};
  device::launch(stream, shape, direct_linear_kernel<kTokens, kSplit>, params);
}

template <int kTokens>
void start_direct_linear(const DirectDeviceParams& params,
                         const DirectPlan& plan,
                         device::StreamHandle stream) {
  if (plan.split == 2) {
    start_direct_form<kTokens, 2>(params, plan, stream);
  } else if constexpr (kTokens == 2) {
    if (plan.split == 8) {
      start_direct_form<kTokens, 8>(params, plan, stream);
    } else {
      start_direct_form<kTokens, 4>(params, plan, stream);
    }
  } else if constexpr (kTokens >= 8) {
    start_direct_form<kTokens, 1>(params, plan, stream);
  }
}

}  // namespace baleen::kernels
