#pragma once
// Random decisions of one training row: a pure function of (seed, stream, row), so row 17 of step
// 400 is the same text on every machine and after every restart. A value type; one owner, any
// thread.
//
//   Draws draws(seed, Draws::kDialogues, row);
//   const int digit = draws.below(10);

#include <cstdint>

#include "numerics/philox.h"

namespace baleen::abacus {

class Draws {
 public:
  static constexpr uint32_t kDialogues = 1;  // stream ids: one purpose each
  static constexpr uint32_t kParameters = 2;
  static constexpr uint32_t kHashTable = 3;

  Draws(uint64_t seed, uint32_t stream, uint64_t row)
      : key_{{static_cast<uint32_t>(seed), stream}},
        high_seed_(static_cast<uint32_t>(seed >> 32)),
        row_(row) {}

  uint32_t word() {
    if (index_ % 4 == 0) {
      block_ = numerics::philox4x32_10({{static_cast<uint32_t>(row_),
                                         static_cast<uint32_t>(row_ >> 32),
                                         static_cast<uint32_t>(index_ / 4),
                                         high_seed_}},
                                       key_);
    }
    return block_.words[index_++ % 4];
  }

  /// Uniform on 0 … count − 1; the bias of the fixed-point product is below count / 2^32.
  int below(int count) {
    return static_cast<int>((static_cast<uint64_t>(word()) * static_cast<uint64_t>(count)) >> 32);
  }

  bool chance(double probability) {
    return static_cast<double>(numerics::uniform_float(word())) < probability;
  }

 private:
  numerics::PhiloxKey key_;
  uint32_t high_seed_;
  uint64_t row_;
  uint64_t index_ = 0;  // words drawn so far
  numerics::PhiloxBlock block_{};
};

}  // namespace baleen::abacus
