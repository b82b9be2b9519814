#include "device/launch.h"
#include "kernels/indexer_scores/delayed_copy.h"
#include "kernels/ptx/pdl.cuh"

namespace baleen::kernels::testing {
namespace {

constexpr int64_t kClocksPerMicrosecond = 1980;

__global__ void delayed_copy_kernel(uint8_t* to,
                                    const uint8_t* from,
                                    int64_t bytes,
                                    int32_t delay_us) {
  ptx::release_successor();
  ptx::wait_for_predecessor();
  const int64_t begin = clock64();
  while (clock64() - begin < delay_us * kClocksPerMicrosecond) {
  }
  for (int64_t i = threadIdx.x; i < bytes; i += blockDim.x) {
    to[i] = from[i];
  }
}

}  // namespace

void launch_delayed_copy(
    void* to, const void* from, int64_t bytes, int32_t delay_us, device::StreamHandle stream) {
  device::launch(stream,
                 {.block = dim3(256), .programmatic = true},
                 delayed_copy_kernel,
                 static_cast<uint8_t*>(to),
                 static_cast<const uint8_t*>(from),
                 bytes,
                 delay_us);
}

}  // namespace baleen::kernels::testing
