#pragma once
// Base of all tests that need a device: skips aloud when there is none, and offers a stream. Suites
// end in `Gpu`, or in `GpuSmall` when their shapes stay under 1 MB (the sanitizers run those).
//
//   using RouterGpuSmall = kernels::testing::GpuTest;
//   TEST_F(RouterGpuSmall, TiesGoToTheLowerExpert) { launch(params, stream()); synchronize(); ... }

#include <memory>

#include <gtest/gtest.h>

#include "device/cuda_check.h"
#include "device/stream.h"

namespace baleen::kernels::testing {

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device::device_count() == 0) {
      GTEST_SKIP() << "no CUDA device";
    }
    stream_ = std::make_unique<device::Stream>();
  }
  void TearDown() override {
    if (stream_ != nullptr) {
      synchronize();
    }
  }

  cudaStream_t stream() const { return stream_->get(); }
  const device::Stream& owned_stream() const { return *stream_; }
  /// Waits for the stream and throws what the kernels on it did wrong.
  void synchronize() const {
    BALEEN_CUDA_CHECK(cudaGetLastError());
    stream_->synchronize();
  }

 private:
  std::unique_ptr<device::Stream> stream_;
};

}  // namespace baleen::kernels::testing
