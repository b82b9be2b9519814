#pragma once
// Which operand pairs models/abacus never sees in training, in no phrasing, order or operation.
// About a tenth of the pairs; pairs below 20 are all trained on, because the worked steps of larger
// questions ("12-7=5") are such pairs themselves. tools/abacus/evaluate.py reads the same pairs
// from models/abacus/held_out.csv.
//
//   if (held_out(37, 58)) { ... }

#include <algorithm>
#include <cstdint>

#include "numerics/philox.h"

namespace baleen::rl {

inline constexpr int kMaxOperand = 99;
inline constexpr int kStepOperands = 20;  // worked steps use numbers below this

inline bool held_out(int a, int b) {
  const uint32_t low = static_cast<uint32_t>(std::min(a, b));
  const uint32_t high = static_cast<uint32_t>(std::max(a, b));
  constexpr numerics::PhiloxKey kKey = {{20261129U, 0U}};
  return high >= kStepOperands &&
         numerics::philox4x32_10({{low, high, 0U, 0U}}, kKey).words[0] % 10U == 0U;
}

}  // namespace baleen::rl
