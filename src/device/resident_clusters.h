#pragma once
// How many clusters of a kernel the current device holds at once: what a grid of persistent
// clusters is made of. Raises the kernel's limits on shared memory and cluster size where it needs
// to. Asks the driver: call it once and keep the number. For `.cu` files.
//
//   static const int clusters = device::resident_clusters(kernel, {.block = dim3(256), .cluster =
//   8});

#include "device/launch.h"

namespace baleen::device {

/// None where a cluster of this size does not fit. The grid of `shape` does not matter.
template <class... Parameters>
int resident_clusters(void (*kernel)(Parameters...), const LaunchShape& shape) {
  const auto* function = reinterpret_cast<const void*>(kernel);
  BALEEN_CUDA_CHECK(cudaFuncSetAttribute(
      function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shape.shared_bytes)));
  if (shape.cluster > 8) {
    BALEEN_CUDA_CHECK(
        cudaFuncSetAttribute(function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  }
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = shape.cluster;
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(shape.cluster * 16);
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  const cudaError_t status = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
  if (status == cudaErrorInvalidClusterSize) {
    cudaGetLastError();  // or the next launch would report it
    return 0;
  }
  BALEEN_CUDA_CHECK(status);
  return clusters;
}

}  // namespace baleen::device
