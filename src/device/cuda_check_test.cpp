#include "device/cuda_check.h"

#include <cstdint>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "device/buffer.h"

namespace baleen::device {
namespace {

// Whoever goes on without the memory (an update that finds no room, the body instead of kernels)
// launches kernels that ask for the runtime's last error, and must not be given this one. Without a
// driver every call has the same error again.
TEST(CudaCheckGpu, ARefusedAllocationLeavesNoErrorBehind) {
  if (device_count() == 0) {
    GTEST_SKIP() << "no CUDA device";
  }
  EXPECT_THROW(Buffer<uint8_t>(int64_t{1} << 50), DeviceError);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

}  // namespace
}  // namespace baleen::device
