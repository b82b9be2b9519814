#pragma once
// Whether an answer is the label, by spelling, structure, exact number or value. Never throws and
// never hangs: the work is bounded. Pure, any thread.
//
//   compare_answers("(1, \\frac12)", "(1,1/2)", {}).equal   // true

#include <cstdint>
#include <string_view>

namespace baleen::rewards {

struct MathRules {
  /// An answer that is an unreduced fraction is wrong where the label is a reduced one.
  bool strict_fraction = true;
};

struct MathMatch {
  bool equal = false;
  const char* how = "";  // spelling, list, number, value, refused
  int64_t steps = 0;     // elementary operations that it took, of a budget of 10^6
};

MathMatch compare_answers(std::string_view answer, std::string_view label, const MathRules& rules);

}  // namespace baleen::rewards
