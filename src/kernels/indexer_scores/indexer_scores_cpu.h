#pragma once
// Index scores of one query for a list of keys on the CPU: sum_h a_h * max(0, <q_h, k>). Dots in
// the order of lanes.h, heads in ascending order, so a score's bits depend on its query and its key
// alone. No threads, no allocation; float and double. Oracle: indexer_scores_oracle.h.
//
//   kernels::indexer_scores_cpu<float>({.q = q, .keys = keys, .weights = a, .scores = scores,
//                                       .dots = scratch, .heads = 64, .width = 128, .entries = n});

#include <cstdint>

namespace baleen::kernels {

template <class T>
struct IndexerScoresCpuArgs {
  const T* q = nullptr;        // [heads, width]
  const T* keys = nullptr;     // [entries, width], contiguous
  const T* weights = nullptr;  // [heads]
  T* scores = nullptr;         // [entries], out
  T* dots = nullptr;           // scratch, [heads, entries]
  int64_t heads = 0;
  int64_t width = 0;
  int64_t entries = 0;
  bool rounded = false;  // dot, product with the weight and sum to bf16
};

template <class T>
void indexer_scores_cpu(const IndexerScoresCpuArgs<T>& args);

}  // namespace baleen::kernels
