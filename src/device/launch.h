#pragma once
// Launches a kernel with the attributes Hopper code needs: cluster size, dynamic shared memory
// above 48 KiB and programmatic dependent launch. Checks the launch; allocates nothing and never
// waits, so it is legal inside graph capture. For `.cu` files.
//
//   device::launch(stream, {.grid = dim3(132), .block = dim3(384), .shared_bytes = 100 * 1024,
//                           .programmatic = true}, kernel<64>, params);

#include <cstddef>

#include <cuda_runtime.h>

#include "device/cuda_check.h"

namespace baleen::device {

struct LaunchShape {
  dim3 grid = dim3(1);
  dim3 block = dim3(1);
  unsigned cluster = 1;          // blocks along x that share a cluster; above 8 is non-portable
  std::size_t shared_bytes = 0;  // dynamic shared memory per block
  bool programmatic = false;     // may start before its predecessor in the stream has ended
};

template <class... Parameters, class... Arguments>
void launch(cudaStream_t stream,
            const LaunchShape& shape,
            void (*kernel)(Parameters...),
            Arguments&&... arguments) {
  if (shape.shared_bytes > 48 * 1024) {
    BALEEN_CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                           cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(shape.shared_bytes)));
  }
  if (shape.cluster > 8) {
    BALEEN_CUDA_CHECK(cudaFuncSetAttribute(
        reinterpret_cast<const void*>(kernel), cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  }
  cudaLaunchAttribute attributes[2];
  unsigned count = 0;
  if (shape.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = shape.cluster;
    attributes[count].val.clusterDim.y = 1;
    attributes[count].val.clusterDim.z = 1;
    ++count;
  }
  if (shape.programmatic) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count].val.programmaticStreamSerializationAllowed = 1;
    ++count;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  BALEEN_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}

}  // namespace baleen::device
