#include "kernels/indexer_scores/indexer_scores_cpu.h"

#include "kernels/linear/linear_cpu.h"
#include "numerics/bfloat16.h"

namespace baleen::kernels {

template <class T>
void indexer_scores_cpu(const IndexerScoresCpuArgs<T>& args) {
  linear_cpu<T>({.x = args.q,
                 .weight = args.keys,
                 .y = args.dots,
                 .rows = args.heads,
                 .outputs = args.entries,
                 .cols = args.width,
                 .x_stride = args.width,
                 .y_stride = args.entries});
  const auto store = [&](T value) { return args.rounded ? numerics::round_to_bf16(value) : value; };
  for (int64_t e = 0; e < args.entries; ++e) {
    T score = 0;
    for (int64_t h = 0; h < args.heads; ++h) {
      const T dot = store(args.dots[h * args.entries + e]);
      score += store(args.weights[h] * (dot > T(0) ? dot : T(0)));
    }
    args.scores[e] = store(score);
  }
}

template void indexer_scores_cpu(const IndexerScoresCpuArgs<float>&);
template void indexer_scores_cpu(const IndexerScoresCpuArgs<double>&);

}  // namespace baleen::kernels
