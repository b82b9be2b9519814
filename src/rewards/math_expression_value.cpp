// Equality of expressions by their values at fixed points.

#include <algorithm>
#include <cmath>
#include <complex>
#include <numbers>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rewards/double_double.h"
#include "rewards/math_expression.h"

namespace baleen::rewards {
namespace {

using Node = Expression::Node;
using Kind = Expression::Kind;

// The two largest primes below 2^61.
constexpr uint64_t kPrimes[] = {(uint64_t{1} << 61U) - 1, (uint64_t{1} << 61U) - 31};
constexpr int kFieldPoints = 8;  // of each prime
constexpr int kComplexPoints = 8;
constexpr double kRelative = 1e-9;
constexpr double kScaleFloor = 1e-6;
constexpr uint64_t kSeed = 0x5EED5EED5EED5EEDULL;

/// A fixed series of numbers (splitmix64).
class PointSeries {
 public:
  explicit PointSeries(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    state_ += 0x9E3779B97F4A7C15ULL;
    uint64_t z = state_;
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31U);
  }
  /// In [low, high).
  double next(double low, double high) {
    return low + (high - low) * static_cast<double>(next() >> 11U) * 0x1p-53;
  }

 private:
  uint64_t state_;
};

/// Values by name of a letter: the letters of both expressions share them.
template <class Value>
using LetterValues = std::vector<std::pair<std::string, Value>>;

template <class Value>
Value letter_value(const LetterValues<Value>& values, const std::string& name) {
  for (const auto& [known, value] : values) {
    if (known == name) {
      return value;
    }
  }
  return {};
}

std::vector<std::string> letters_of(const Expression& a, const Expression& b) {
  std::vector<std::string> letters = a.letters;
  letters.insert(letters.end(), b.letters.begin(), b.letters.end());
  return letters;
}

template <class Value, class Draw>
LetterValues<Value> draw_letters(const std::vector<std::string>& letters, const Draw& draw) {
  LetterValues<Value> values;
  for (const std::string& name : letters) {
    bool known = false;
    for (const auto& entry : values) {
      known = known || entry.first == name;
    }
    if (!known) {
      values.emplace_back(name, draw());
    }
  }
  return values;
}

class PrimeField {
 public:
  explicit PrimeField(uint64_t prime) : prime_(prime) {}
  uint64_t of(uint64_t value) const { return value % prime_; }
  uint64_t add(uint64_t a, uint64_t b) const { return (a + b) % prime_; }
  uint64_t negative(uint64_t a) const { return a == 0 ? 0 : prime_ - a; }
  uint64_t times(uint64_t a, uint64_t b) const {
    return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b % prime_);
  }
  uint64_t power(uint64_t base, uint64_t exponent) const {
    uint64_t value = 1;
    for (; exponent != 0; exponent >>= 1U) {
      value = (exponent & 1U) != 0 ? times(value, base) : value;
      base = times(base, base);
    }
    return value;
  }
  /// None for 0.
  std::optional<uint64_t> inverse(uint64_t a) const {
    return a == 0 ? std::nullopt : std::optional(power(a, prime_ - 2));
  }

 private:
  uint64_t prime_;
};

/// The integer an exponent is, or none.
std::optional<int> integer_exponent(const Expression& expression, int32_t index) {
  const Node* node = &expression.nodes[static_cast<size_t>(index)];
  const bool negative = node->kind == Kind::kNeg;
  if (negative) {
    node = &expression.nodes[static_cast<size_t>(node->left)];
  }
  if (node->kind != Kind::kNumber || node->decimals != 0 || node->mantissa > 99) {
    return std::nullopt;
  }
  const auto value = static_cast<int>(node->mantissa);
  return negative ? -value : value;
}

/// Value of a rational expression in the field; none where it divides by 0.
std::optional<uint64_t> field_value(const Expression& expression,
                                    const PrimeField& field,
                                    const LetterValues<uint64_t>& letters) {
  std::vector<uint64_t> values(expression.nodes.size(), 0);
  for (size_t i = 0; i < expression.nodes.size(); ++i) {
    const Node& node = expression.nodes[i];
    const uint64_t left = node.left < 0 ? 0 : values[static_cast<size_t>(node.left)];
    const uint64_t right = node.right < 0 ? 0 : values[static_cast<size_t>(node.right)];
    std::optional<uint64_t> value;
    switch (node.kind) {
      case Kind::kNumber:
        value = field.inverse(field.power(10, static_cast<uint64_t>(node.decimals)));
        value = field.times(field.of(node.mantissa), *value);
        break;
      case Kind::kLetter:
        value = letter_value(letters, expression.letters[static_cast<size_t>(node.letter)]);
        break;
      case Kind::kAdd:
        value = field.add(left, right);
        break;
      case Kind::kMul:
        value = field.times(left, right);
        break;
      case Kind::kNeg:
        value = field.negative(left);
        break;
      case Kind::kDiv:
        value = field.inverse(right);
        value = value ? std::optional(field.times(left, *value)) : value;
        break;
      case Kind::kPower: {
        const int exponent = integer_exponent(expression, node.right).value_or(0);
        value = exponent < 0 ? field.inverse(left) : std::optional(left);
        value = value
                    ? std::optional(field.power(*value, static_cast<uint64_t>(std::abs(exponent))))
                    : value;
        break;
      }
      default:
        break;
    }
    if (!value) {
      return std::nullopt;
    }
    values[i] = *value;
  }
  return values.back();
}

// Of 32 digits, as sums of two doubles.
constexpr DoubleDouble kWidePi{3.141592653589793116, 1.224646799147353207e-16};
constexpr DoubleDouble kWideEuler{2.718281828459045091, 1.445646891729250158e-16};

WideComplex power_value(const Expression& expression,
                        const Node& node,
                        const WideComplex& base,
                        const WideComplex& exponent) {
  if (const std::optional<int> whole = integer_exponent(expression, node.right)) {
    const WideComplex value = integer_power(base, static_cast<unsigned>(std::abs(*whole)));
    return *whole < 0 ? wide(1.0) / value : value;
  }
  const Node& shown = expression.nodes[static_cast<size_t>(node.right)];
  if (shown.kind == Kind::kDiv) {
    const auto above = integer_exponent(expression, shown.left);
    const auto below = integer_exponent(expression, shown.right);
    if (above && below && *above >= 0 && *below > 0) {
      return integer_power(principal_root(base, static_cast<unsigned>(*below)),
                           static_cast<unsigned>(*above));
    }
  }
  return wide(std::pow(base.rounded(), exponent.rounded()));
}

WideComplex complex_value(const Expression& expression, const LetterValues<WideComplex>& letters) {
  std::vector<WideComplex> values(expression.nodes.size());
  for (size_t i = 0; i < expression.nodes.size(); ++i) {
    const Node& node = expression.nodes[i];
    const WideComplex left = node.left < 0 ? WideComplex{} : values[static_cast<size_t>(node.left)];
    const WideComplex right =
        node.right < 0 ? WideComplex{} : values[static_cast<size_t>(node.right)];
    WideComplex& value = values[i];
    switch (node.kind) {
      case Kind::kNumber: {
        // Split so that both halves are exact in double.
        const auto high = static_cast<double>(node.mantissa >> 30U) * 0x1p30;
        const auto low = static_cast<double>(node.mantissa & 0x3FFFFFFFU);
        value.re = exact_sum(high, low) /
                   integer_power(wide(10.0), static_cast<unsigned>(node.decimals)).re;
        break;
      }
      case Kind::kLetter:
        value = letter_value(letters, expression.letters[static_cast<size_t>(node.letter)]);
        break;
      case Kind::kPi:
        value.re = kWidePi;
        break;
      case Kind::kEuler:
        value.re = kWideEuler;
        break;
      case Kind::kImaginary:
        value.im = {1.0, 0.0};
        break;
      case Kind::kAdd:
        value = left + right;
        break;
      case Kind::kMul:
        value = left * right;
        break;
      case Kind::kDiv:
        value = left / right;
        break;
      case Kind::kNeg:
        value = -left;
        break;
      case Kind::kPower:
        value = power_value(expression, node, left, right);
        break;
      case Kind::kRoot:
        value = principal_root(left, static_cast<unsigned>(node.mantissa));
        break;
    }
  }
  return values.back();
}

enum class Agreement { kYes, kNo, kUnknown };

Agreement field_agreement(const Expression& a, const Expression& b) {
  const std::vector<std::string> letters = letters_of(a, b);
  Agreement result = Agreement::kUnknown;
  PointSeries series(kSeed);
  for (const uint64_t prime : kPrimes) {
    const PrimeField field(prime);
    for (int point = 0; point < kFieldPoints; ++point) {
      const auto values = draw_letters<uint64_t>(letters, [&] { return field.of(series.next()); });
      const std::optional<uint64_t> left = field_value(a, field, values);
      const std::optional<uint64_t> right = field_value(b, field, values);
      if (left != right) {
        return Agreement::kNo;
      }
      result = left ? Agreement::kYes : result;
    }
  }
  return result;
}

Agreement complex_agreement(const Expression& a, const Expression& b) {
  const std::vector<std::string> letters = letters_of(a, b);
  Agreement result = Agreement::kUnknown;
  PointSeries series(kSeed + 1);
  for (int point = 0; point < kComplexPoints; ++point) {
    const auto values = draw_letters<WideComplex>(letters, [&] {
      const double angle = series.next(0.0, 2.0 * std::numbers::pi);
      return wide(std::polar(series.next(0.5, 2.0), angle));
    });
    const WideComplex left = complex_value(a, values);
    const WideComplex right = complex_value(b, values);
    if (left.finite() != right.finite()) {
      return Agreement::kNo;
    }
    if (!left.finite()) {
      continue;
    }
    const double scale =
        std::max({std::abs(left.rounded()), std::abs(right.rounded()), kScaleFloor});
    if (!(std::abs((left - right).rounded()) <= kRelative * scale)) {
      return Agreement::kNo;
    }
    result = Agreement::kYes;
  }
  return result;
}

}  // namespace

bool same_value(const Expression& a, const Expression& b, StepBudget& budget) {
  const auto nodes = static_cast<int64_t>(a.nodes.size() + b.nodes.size());
  if (!budget.spend(nodes * (2 * kFieldPoints + kComplexPoints))) {
    return false;
  }
  if (a.rational && b.rational && field_agreement(a, b) != Agreement::kYes) {
    return false;
  }
  return complex_agreement(a, b) == Agreement::kYes;
}

}  // namespace baleen::rewards
