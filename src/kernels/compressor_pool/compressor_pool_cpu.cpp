#include "kernels/compressor_pool/compressor_pool_cpu.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace baleen::kernels {
namespace {

constexpr int64_t kRuns = 8;  // partial sums of a long group

}  // namespace

template <class T>
void compressor_pool_cpu(const CompressorPoolCpuArgs<T>& args) {
  BALEEN_CHECK(args.num_slots > 0, "an entry has at least one slot");
  const int64_t run = (args.num_slots + kRuns - 1) / kRuns;
  for (int64_t i = 0; i < args.width; ++i) {
    T maximum = args.scores[0][i];
    for (int64_t s = 1; s < args.num_slots; ++s) {
      maximum = std::max(maximum, args.scores[s][i]);
    }
    T sum = 0;
    T weighted = 0;
    for (int64_t begin = 0; begin < args.num_slots; begin += run) {
      const int64_t end = std::min(args.num_slots, begin + run);
      T run_sum = 0;
      T run_weighted = 0;
      for (int64_t s = begin; s < end; ++s) {
        const T weight = std::exp(args.scores[s][i] - maximum);
        run_sum += weight;
        run_weighted += weight * args.values[s][i];
      }
      sum += run_sum;
      weighted += run_weighted;
    }
    args.entry[i] = weighted / sum;
  }
}

template void compressor_pool_cpu(const CompressorPoolCpuArgs<float>&);
template void compressor_pool_cpu(const CompressorPoolCpuArgs<double>&);

}  // namespace baleen::kernels
