#pragma once
// Regular expressions in linear time: all alternatives are followed at once (Thompson), nothing is
// tried again. Literals, . [...] \d \w \s \D \W \S \b \B ^ $ | () (?:) and * + ? {n,m} with or
// without a lazy ?; a leading (?i) ignores ASCII case, (?s) lets . match a line end, (?m) lets ^
// and $ match at line ends. Back-references and look-around are refused. Works on code points.
//
//   Result<LinearRegex> regex = LinearRegex::compile("^<answer>\\d+</answer>$");
//   regex->search(text, budget)

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "rewards/step_budget.h"

namespace baleen::rewards {

class LinearRegex {
 public:
  /// kInvalidArgument naming the place and what is wrong.
  static Result<LinearRegex> compile(std::string_view pattern);

  /// Whether it matches anywhere in `text`. None when the budget is spent; a step is one
  /// alternative at one code point.
  std::optional<bool> search(std::string_view text, StepBudget& budget) const;

  using Range = std::pair<char32_t, char32_t>;  // both ends included
  enum class Op : uint8_t { kSet, kSplit, kJump, kAssert, kMatch };
  enum class Assertion : uint8_t { kBegin, kEnd, kLineBegin, kLineEnd, kWordEdge, kNoWordEdge };
  struct Instruction {
    Op op = Op::kMatch;
    int32_t first = 0;   // kSplit, kJump: target; kSet: index in sets_
    int32_t second = 0;  // kSplit: other target
    Assertion assertion = Assertion::kBegin;
  };
  struct CharacterSet {
    std::vector<Range> ranges;
    bool negated = false;
    bool contains(char32_t c) const;
  };

 private:
  friend class RegexCompiler;
  std::vector<Instruction> program_;
  std::vector<CharacterSet> sets_;
};

}  // namespace baleen::rewards
