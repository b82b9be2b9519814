#pragma once
// One compressed entry on the CPU: per channel the softmax over the scores of its slots, times
// their values. The exact maximum comes first; then eight runs of slots, each summed in order, and
// the runs in order (of at most eight slots: all in order). No threads, no allocation; float and
// double. Oracle: compressor_pool_oracle.h.
//
//   kernels::compressor_pool_cpu<float>({.values = values, .scores = scores, .entry = entry,
//                                        .num_slots = 8, .width = 512});

#include <cstdint>

namespace baleen::kernels {

template <class T>
struct CompressorPoolCpuArgs {
  const T* const* values = nullptr;  // num_slots pointers to [width], oldest token first
  const T* const* scores = nullptr;  // the same, with the position bias
  T* entry = nullptr;                // [width], out
  int64_t num_slots = 0;             // at least 1
  int64_t width = 0;
};

template <class T>
void compressor_pool_cpu(const CompressorPoolCpuArgs<T>& args);

}  // namespace baleen::kernels
