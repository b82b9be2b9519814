#pragma once
// The order in which samples are drawn: a pure function of the seed, so that a resumed run needs
// only the number of samples it has drawn. Every epoch is a permutation of its own. Pure, any
// thread.
//
//   const int64_t sample = drawn_sample(seed, count, draw);   // draw 0, 1, 2, ... of the run

#include <cstdint>

namespace baleen::train {

/// Which of `count` > 0 samples draw number `draw` >= 0 takes: draws [e * count, (e + 1) * count)
/// are a permutation.
int64_t drawn_sample(uint64_t seed, int64_t count, int64_t draw);

}  // namespace baleen::train
