#pragma once
// Expressions over + - * / ^ and roots, rational constants, pi, e, i and at most two letters, as a
// tree. What is larger, deeper or stranger than that is refused, not guessed at. Pure, any thread.
//
//   StepBudget budget;
//   std::optional<Expression> a = parse_expression("2\\sqrt{2}", budget);
//   std::optional<Expression> b = parse_expression("\\sqrt{8}", budget);
//   a && b && same_value(*a, *b, budget)

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rewards/step_budget.h"

namespace baleen::rewards {

struct Expression {
  enum class Kind : uint8_t {
    kNumber,
    kLetter,
    kPi,
    kEuler,
    kImaginary,
    kAdd,
    kMul,
    kDiv,
    kNeg,
    kPower,
    kRoot
  };
  struct Node {
    Kind kind = Kind::kNumber;
    int32_t left = -1;      // index of the first operand; base of kPower, radicand of kRoot
    int32_t right = -1;     // second operand; exponent of kPower
    uint64_t mantissa = 0;  // kNumber: mantissa / 10^decimals; kRoot: its degree
    int32_t decimals = 0;
    int32_t letter = 0;  // kLetter: index in `letters`
  };
  std::vector<Node> nodes;           // operands stand before what uses them; the last is the root
  std::vector<std::string> letters;  // such as x or \theta
  bool rational = true;              // a rational function of the letters: no roots, pi, e, i

  const Node& root() const { return nodes.back(); }
};

/// `form` is of math_form. None when it is no such expression, has more than 2 letters or 200
/// nodes, an exponent with an exponent or braces inside, or an exponent of 2 or more digits.
std::optional<Expression> parse_expression(std::string_view form, StepBudget& budget);

/// Whether both are one function. Rational ones are compared at 16 points of two prime fields, and
/// all at 8 complex points, to 1e-9 relative; equal only if every point agrees and some point could
/// be evaluated. The points are fixed.
bool same_value(const Expression& a, const Expression& b, StepBudget& budget);

}  // namespace baleen::rewards
