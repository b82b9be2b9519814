#include "rewards/exact_number.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace baleen::rewards {
namespace {

constexpr uint32_t kBase = 1'000'000'000;
constexpr int kBaseDigits = 9;
constexpr size_t kMaxDigits = 600;
constexpr int64_t kMaxExponent = 400;
constexpr size_t kSmallDigits = 18;

bool digit_at(std::string_view text, size_t i) {
  return i < text.size() && text[i] >= '0' && text[i] <= '9';
}

BigNatural natural(std::string_view digits) {
  BigNatural value;
  size_t end = digits.size();
  while (end > 0) {
    const size_t begin = end > kBaseDigits ? end - kBaseDigits : 0;
    uint32_t part = 0;
    for (size_t i = begin; i < end; ++i) {
      part = part * 10 + static_cast<uint32_t>(digits[i] - '0');
    }
    value.push_back(part);
    end = begin;
  }
  while (!value.empty() && value.back() == 0) {
    value.pop_back();
  }
  return value;
}

BigNatural product(const BigNatural& a, const BigNatural& b) {
  if (a.empty() || b.empty()) {
    return {};
  }
  BigNatural value(a.size() + b.size(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    uint64_t carry = 0;
    for (size_t j = 0; j < b.size() || carry != 0; ++j) {
      const uint64_t term = j < b.size() ? uint64_t{a[i]} * b[j] : 0;
      const uint64_t sum = value[i + j] + term + carry;
      value[i + j] = static_cast<uint32_t>(sum % kBase);
      carry = sum / kBase;
    }
  }
  while (!value.empty() && value.back() == 0) {
    value.pop_back();
  }
  return value;
}

BigNatural sum(const BigNatural& a, const BigNatural& b) {
  BigNatural value;
  uint64_t carry = 0;
  for (size_t i = 0; i < std::max(a.size(), b.size()) || carry != 0; ++i) {
    carry += (i < a.size() ? a[i] : 0U);
    carry += (i < b.size() ? b[i] : 0U);
    value.push_back(static_cast<uint32_t>(carry % kBase));
    carry /= kBase;
  }
  return value;
}

BigNatural power_of_ten(int64_t exponent) {
  return natural('1' + std::string(static_cast<size_t>(exponent), '0'));
}

/// Reads pieces of a form from left to right.
class NumberReader {
 public:
  explicit NumberReader(std::string_view form) : rest_(form) {}

  bool done() const { return rest_.empty(); }
  bool take(std::string_view what) {
    if (!rest_.starts_with(what)) {
      return false;
    }
    rest_.remove_prefix(what.size());
    return true;
  }
  std::string_view digits() {
    size_t count = 0;
    while (digit_at(rest_, count)) {
      ++count;
    }
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }
  /// A signed exponent within bounds.
  std::optional<int64_t> exponent() {
    const bool negative = take("-");
    if (!negative) {
      take("+");
    }
    const std::string_view shown = digits();
    if (shown.empty() || shown.size() > 4) {
      return std::nullopt;
    }
    int64_t value = 0;
    for (const char c : shown) {
      value = value * 10 + (c - '0');
    }
    return value <= kMaxExponent ? std::optional(negative ? -value : value) : std::nullopt;
  }

 private:
  std::string_view rest_;
};

struct WrittenFraction {
  BigNatural numerator;
  BigNatural denominator;
  bool negative = false;
  bool reduced = true;
};

/// \frac{a}{b} of integers, signs allowed inside.
std::optional<WrittenFraction> read_fraction(NumberReader& reader) {
  if (!reader.take("\\frac{")) {
    return std::nullopt;
  }
  WrittenFraction fraction;
  fraction.negative = reader.take("-");
  const std::string_view above = reader.digits();
  if (above.empty() || !reader.take("}{")) {
    return std::nullopt;
  }
  fraction.negative = fraction.negative != reader.take("-");
  const std::string_view below = reader.digits();
  if (below.empty() || !reader.take("}") || above.size() + below.size() > kMaxDigits) {
    return std::nullopt;
  }
  fraction.numerator = natural(above);
  fraction.denominator = natural(below);
  if (fraction.denominator.empty()) {
    return std::nullopt;
  }
  if (above.size() <= kSmallDigits && below.size() <= kSmallDigits) {
    fraction.reduced =
        std::gcd(std::stoull(std::string(above)), std::stoull(std::string(below))) == 1;
  }
  return fraction;
}

/// What may follow a decimal: an exponent, as e3 or *10^{3}. None when it is malformed.
std::optional<int64_t> read_scale(NumberReader& reader) {
  if (reader.take("e") || reader.take("E")) {
    return reader.exponent();
  }
  if (!reader.take("*10^")) {
    return 0;
  }
  const bool braces = reader.take("{");
  const std::optional<int64_t> exponent = reader.exponent();
  return !braces || reader.take("}") ? exponent : std::nullopt;
}

}  // namespace

std::optional<ExactNumber> parse_number(std::string_view form) {
  NumberReader reader(form);
  ExactNumber number;
  number.negative = reader.take("-");
  if (!number.negative) {
    reader.take("+");
  }
  const std::string_view whole = reader.digits();
  if (form.size() > kMaxDigits) {
    return std::nullopt;
  }
  if (reader.done()) {
    if (whole.empty()) {
      return std::nullopt;
    }
    number.numerator = natural(whole);
    number.denominator = {1};
    number.integer = true;
    return number;
  }
  if (std::optional<WrittenFraction> fraction = read_fraction(reader)) {
    if (!reader.done() || (!whole.empty() && fraction->negative)) {
      return std::nullopt;
    }
    number.negative = number.negative != fraction->negative;
    number.numerator = sum(product(natural(whole), fraction->denominator), fraction->numerator);
    number.denominator = std::move(fraction->denominator);
    number.fraction = whole.empty();
    number.reduced = fraction->reduced;
    return number;
  }
  const bool point = reader.take(".");
  const std::string_view decimals = point ? reader.digits() : std::string_view();
  if (whole.empty()) {
    return std::nullopt;
  }
  const std::optional<int64_t> scale = read_scale(reader);
  if (!scale || !reader.done()) {
    return std::nullopt;
  }
  number.numerator = natural(std::string(whole) + std::string(decimals));
  number.denominator = power_of_ten(static_cast<int64_t>(decimals.size()));
  BigNatural& scaled = *scale < 0 ? number.denominator : number.numerator;
  scaled = product(scaled, power_of_ten(*scale < 0 ? -*scale : *scale));
  return number;
}

bool same_number(const ExactNumber& a, const ExactNumber& b) {
  if (a.numerator.empty() || b.numerator.empty()) {
    return a.numerator.empty() && b.numerator.empty();
  }
  return a.negative == b.negative &&
         product(a.numerator, b.denominator) == product(b.numerator, a.denominator);
}

}  // namespace baleen::rewards
