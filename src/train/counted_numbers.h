#pragma once
// Small random numbers of one problem: a pure function of seed, stream, the problem's number and
// how many were drawn before. One thread.
//
//   CountedNumbers numbers(seed, kProblemStream, number);
//   int digit = numbers.below(10);

#include <cstdint>

#include "numerics/philox.h"

namespace baleen::train {

/// The random numbers of one problem.
class CountedNumbers {
 public:
  CountedNumbers(uint64_t seed, uint32_t stream, int64_t number)
      : seed_(seed), stream_(stream), number_(static_cast<uint64_t>(number)) {}

  int below(int count) {
    if (index_ % 4 == 0) {
      block_ = numerics::philox4x32_10(
          {{static_cast<uint32_t>(number_), static_cast<uint32_t>(number_ >> 32), index_ / 4, 0}},
          {{static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32) ^ stream_}});
    }
    const uint64_t word = block_.words[index_++ % 4];
    return static_cast<int>((word * static_cast<uint64_t>(count)) >> 32);
  }

 private:
  uint64_t seed_;
  uint32_t stream_;
  uint64_t number_;
  uint32_t index_ = 0;
  numerics::PhiloxBlock block_{};
};

}  // namespace baleen::train
