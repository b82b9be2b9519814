#pragma once
// Numbers as they are written, compared as exact rationals. Pure, any thread.
//
//   std::optional<ExactNumber> a = parse_number("0.5"), b = parse_number("\\frac{1}{2}");
//   same_number(*a, *b)   // true

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace baleen::rewards {

/// A natural number, little-endian digits of base 10^9, no leading zero digit; empty is 0.
using BigNatural = std::vector<uint32_t>;

struct ExactNumber {
  bool negative = false;
  BigNatural numerator;
  BigNatural denominator;  // never 0
  bool integer = false;    // written as an integer, such as -12
  bool fraction = false;   // written as a fraction of integers
  bool reduced = true;     // of fractions: no common divisor, as far as 18 digits show
};

/// Integer, decimal, scientific (1e3, 1.5*10^{3}), fraction, mixed number; none for anything else
/// and for numbers of more than 600 digits or exponents beyond +-400. `form` is of math_form.
std::optional<ExactNumber> parse_number(std::string_view form);

bool same_number(const ExactNumber& a, const ExactNumber& b);

}  // namespace baleen::rewards
