#pragma once
// The kernel around linear_body.cuh and its launch. Included by the files that
// instantiate one token tile each, so that they build in parallel.

#include "device/launch.h"
#include "kernels/linear/linear_body.cuh"

namespace baleen::kernels {

/// Two blocks fit a multiprocessor, so that the successor's blocks can run ahead.
template <int kTokens, int kRowTiles>
__global__ void __launch_bounds__(linear_body::Tile<kTokens, kRowTiles>::kThreads, 2)
    linear_kernel(const __grid_constant__ LinearDeviceParams params) {
  extern __shared__ __align__(1024) uint8_t shared[];
  linear_body::run_block<kTokens, kRowTiles>(params, nullptr, shared);
}

/// The same with x by tensor maps.
template <int kTokens, int kRowTiles>
__global__ void __launch_bounds__(linear_body::Tile<kTokens, kRowTiles>::kThreads, 2)
    mapped_linear_kernel(const __grid_constant__ LinearDeviceParams params,
                         const __grid_constant__ LinearXMaps x_maps) {
  extern __shared__ __align__(1024) uint8_t shared[];
  linear_body::run_block<kTokens, kRowTiles>(params, x_maps.maps, shared);
}

template <int kTokens, int kRowTiles>
void start_linear_kernel(const LinearDeviceParams& params,
                         const LinearXMaps& x_maps,
                         const LinearPlan& plan,
                         bool programmatic,
                         device::StreamHandle stream) {
  using T = linear_body::Tile<kTokens, kRowTiles>;
  const device::LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(plan.num_clusters * plan.cluster)),
      .block = dim3(T::kThreads),
      .cluster = static_cast<unsigned>(plan.cluster),
      .shared_bytes = static_cast<std::size_t>(plan.shared_bytes),
      .programmatic = programmatic};
  if constexpr (T::kResident) {
    device::launch(stream, shape, linear_kernel<kTokens, kRowTiles>, params);
  } else {
    device::launch(stream, shape, mapped_linear_kernel<kTokens, kRowTiles>, params, x_maps);
  }
}

}  // namespace baleen::kernels
