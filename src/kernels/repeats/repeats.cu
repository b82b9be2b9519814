#include "device/launch.h"
#include "kernels/repeats/repeats.h"

namespace baleen::kernels::testing {
namespace {

__global__ void count_differences_kernel(const uint32_t* results,
                                         const uint32_t* expected,
                                         int64_t words,
                                         int64_t repeats,
                                         unsigned long long* differences) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  unsigned long long differing = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < words * repeats;
       i += stride) {
    differing += results[i] != expected[i % words] ? 1 : 0;
  }
  if (differing != 0) {
    atomicAdd(differences, differing);
  }
}

}  // namespace

void launch_count_differences(const void* results,
                              const void* expected,
                              int64_t words,
                              int64_t repeats,
                              unsigned long long* differences,
                              device::StreamHandle stream) {
  device::launch(stream,
                 {.grid = dim3(132), .block = dim3(256)},
                 count_differences_kernel,
                 static_cast<const uint32_t*>(results),
                 static_cast<const uint32_t*>(expected),
                 words,
                 repeats,
                 differences);
}

}  // namespace baleen::kernels::testing
