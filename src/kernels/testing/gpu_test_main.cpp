// Runs the GPU tests and says how many were skipped for want of a device. After a device fault (a
// trap, an illegal address) every further call fails, so the run ends at once with what was known.
#include <cstdio>
#include <cstdlib>

#include <gtest/gtest.h>

#include "device/cuda_check.h"

namespace {

class DeviceFaultGuard : public ::testing::EmptyTestEventListener {
  void OnTestEnd(const ::testing::TestInfo& info) override {
    if (baleen::device::device_count() == 0) {
      return;
    }
    const cudaError_t code = cudaDeviceSynchronize();
    if (code != cudaSuccess) {
      std::printf("[  FAULT   ] %s.%s left the device unusable: %s\n",
                  info.test_suite_name(),
                  info.name(),
                  cudaGetErrorString(code));
      std::fflush(stdout);
      std::_Exit(3);
    }
  }
};

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  ::testing::UnitTest::GetInstance()->listeners().Append(new DeviceFaultGuard);
  const int code = RUN_ALL_TESTS();
  const int skipped = ::testing::UnitTest::GetInstance()->skipped_test_count();
  if (skipped > 0) {
    std::printf("%d GPU tests skipped (devices: %d)\n", skipped, baleen::device::device_count());
  }
  return code;
}
