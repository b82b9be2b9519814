// The kernel benchmarks of a build without CUDA.
#include "base/error.h"
#include "kernels/benching/kernel_benches.h"

namespace baleen::kernels::benching {

int run_kernel_benches(const KernelBenchOptions& /*options*/) {
  throw ConfigError(
      "this build has no CUDA kernels to measure; build with preset cuda, or kernel_bench with "
      "preset cuda-kernels");
}

}  // namespace baleen::kernels::benching
