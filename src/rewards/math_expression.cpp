#include "rewards/math_expression.h"

#include <algorithm>

namespace baleen::rewards {
namespace {

using Node = Expression::Node;
using Kind = Expression::Kind;

constexpr size_t kMaxNodes = 200;
constexpr size_t kMaxLetters = 2;
constexpr size_t kMaxLiteralDigits = 18;
constexpr int kMaxNesting = 40;

/// Recursive descent; every method returns the index of its node, or -1 once it has refused.
class ExpressionParser {
 public:
  ExpressionParser(std::string_view form, StepBudget& budget) : text_(form), budget_(budget) {}

  std::optional<Expression> parse() {
    const int32_t root = sum();
    if (root < 0 || at_ != text_.size() || result_.letters.size() > kMaxLetters) {
      return std::nullopt;
    }
    return std::move(result_);
  }

 private:
  int32_t add(Node node) {
    if (result_.nodes.size() >= kMaxNodes || !budget_.spend()) {
      return -1;
    }
    result_.nodes.push_back(node);
    return static_cast<int32_t>(result_.nodes.size()) - 1;
  }
  int32_t join(Kind kind, int32_t left, int32_t right) {
    return left < 0 || right < 0 ? -1 : add({.kind = kind, .left = left, .right = right});
  }
  int32_t wrap(Kind kind, int32_t inner) {
    return inner < 0 ? -1 : add({.kind = kind, .left = inner});
  }

  bool take(std::string_view what) {
    if (!text_.substr(at_).starts_with(what)) {
      return false;
    }
    at_ += what.size();
    return true;
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  static bool digit(char c) { return c >= '0' && c <= '9'; }
  static bool letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

  int32_t sum() {
    if (++nesting_ > kMaxNesting) {
      return -1;
    }
    int32_t value = product();
    while (value >= 0 && (peek() == '+' || peek() == '-')) {
      const bool minus = text_[at_++] == '-';
      const int32_t next = product();
      value = join(Kind::kAdd, value, minus ? wrap(Kind::kNeg, next) : next);
    }
    --nesting_;
    return value;
  }

  int32_t product() {
    int32_t value = signed_power();
    while (value >= 0) {
      if (take("*")) {
        value = join(Kind::kMul, value, signed_power());
      } else if (take("/")) {
        value = join(Kind::kDiv, value, signed_power());
      } else if (starts_factor()) {
        value = join(Kind::kMul, value, power());
      } else {
        break;
      }
    }
    return value;
  }

  bool starts_factor() const {
    const char c = peek();
    return digit(c) || letter(c) || c == '(' || c == '[' || c == '{' ||
           (c == '\\' && at_ + 1 < text_.size() && letter(text_[at_ + 1]));
  }

  int32_t signed_power() {
    bool negative = false;
    for (; peek() == '-' || peek() == '+'; ++at_) {
      negative = negative != (peek() == '-');
      if (!budget_.spend()) {
        return -1;
      }
    }
    const int32_t value = power();
    return negative ? wrap(Kind::kNeg, value) : value;
  }

  int32_t power() {
    const int32_t base = atom();
    if (base < 0 || !take("^")) {
      return base;
    }
    const int32_t exponent = exponent_of_power();
    if (exponent < 0 || peek() == '^') {
      return -1;
    }
    return join(Kind::kPower, base, exponent);
  }

  /// One digit or letter, or a group without further groups, powers or long numbers.
  int32_t exponent_of_power() {
    std::string_view shown = text_.substr(at_, 1);
    if (peek() == '{') {
      const size_t close = text_.find('}', at_);
      if (close == std::string_view::npos) {
        return -1;
      }
      shown = text_.substr(at_ + 1, close - at_ - 1);
      if (const size_t fraction = shown.find("\\frac"); fraction != std::string_view::npos) {
        return fraction == 0 ? fraction_exponent() : -1;
      }
      if (shown.find_first_of("{^") != std::string_view::npos) {
        return -1;
      }
    }
    for (size_t i = 0; i + 1 < shown.size(); ++i) {
      if (digit(shown[i]) && digit(shown[i + 1])) {
        return -1;
      }
    }
    const int32_t exponent = peek() == '{' ? group("{", "}") : atom();
    if (exponent < 0 || !whole(exponent)) {
      result_.rational = false;
    }
    return exponent;
  }

  /// {\frac{p}{q}} with one digit each: the way fractional powers are written.
  int32_t fraction_exponent() {
    const std::string_view shown = text_.substr(at_, 13);
    if (shown.size() < 13 || shown.substr(0, 7) != "{\\frac{" || !digit(shown[7]) ||
        shown.substr(8, 2) != "}{" || !digit(shown[10]) || shown.substr(11) != "}}") {
      return -1;
    }
    result_.rational = false;
    return group("{", "}");
  }

  /// A one-digit integer, perhaps negative.
  bool whole(int32_t index) const {
    const Node* node = &result_.nodes[static_cast<size_t>(index)];
    if (node->kind == Kind::kNeg) {
      node = &result_.nodes[static_cast<size_t>(node->left)];
    }
    return node->kind == Kind::kNumber && node->decimals == 0;
  }

  int32_t group(std::string_view open, std::string_view close) {
    if (!take(open)) {
      return -1;
    }
    const int32_t inner = sum();
    return inner >= 0 && take(close) ? inner : -1;
  }

  int32_t atom() {
    const char c = peek();
    if (digit(c)) {
      return number();
    }
    if (c == '(') {
      return group("(", ")");
    }
    if (c == '[') {
      return group("[", "]");
    }
    if (c == '{') {
      return group("{", "}");
    }
    if (letter(c)) {
      ++at_;
      if (c == 'e' || c == 'i') {
        result_.rational = false;
        return add({.kind = c == 'e' ? Kind::kEuler : Kind::kImaginary});
      }
      return named_letter(std::string(1, c));
    }
    return c == '\\' ? command() : -1;
  }

  int32_t number() {
    const size_t begin = at_;
    Node node{.kind = Kind::kNumber};
    size_t digits = 0;
    bool point = false;
    for (; digit(peek()) || (!point && peek() == '.'); ++at_) {
      if (peek() == '.') {
        point = true;
        continue;
      }
      if (++digits > kMaxLiteralDigits) {
        return -1;
      }
      node.mantissa = node.mantissa * 10 + static_cast<uint64_t>(peek() - '0');
      node.decimals += point ? 1 : 0;
    }
    const int32_t value = add(node);
    // 1\frac{1}{2} is a mixed number, not a product.
    if (!point && at_ > begin && plain_fraction_follows()) {
      return join(Kind::kAdd, value, command());
    }
    return value;
  }

  bool plain_fraction_follows() const {
    std::string_view rest = text_.substr(at_);
    if (!rest.starts_with("\\frac{")) {
      return false;
    }
    rest.remove_prefix(6);
    const auto skip_digits = [&] {
      const size_t count = std::min(rest.find_first_not_of("0123456789"), rest.size());
      rest.remove_prefix(count);
      return count > 0;
    };
    if (!skip_digits() || !rest.starts_with("}{")) {
      return false;
    }
    rest.remove_prefix(2);
    return skip_digits() && rest.starts_with("}");
  }

  int32_t named_letter(const std::string& name) {
    auto& letters = result_.letters;
    auto found = std::find(letters.begin(), letters.end(), name);
    if (found == letters.end()) {
      if (letters.size() >= kMaxLetters) {
        return -1;
      }
      found = letters.insert(letters.end(), name);
    }
    return add({.kind = Kind::kLetter, .letter = static_cast<int32_t>(found - letters.begin())});
  }

  int32_t command() {
    size_t end = at_ + 1;
    while (end < text_.size() && letter(text_[end])) {
      ++end;
    }
    const std::string_view name = text_.substr(at_, end - at_);
    at_ = end;
    take(" ");
    if (name == "\\pi") {
      result_.rational = false;
      return add({.kind = Kind::kPi});
    }
    if (name == "\\frac") {
      const int32_t above = group("{", "}");
      return above < 0 ? -1 : join(Kind::kDiv, above, group("{", "}"));
    }
    if (name == "\\sqrt") {
      return root();
    }
    constexpr std::string_view kGreek[] = {
        "\\alpha", "\\beta", "\\gamma", "\\theta", "\\phi", "\\lambda", "\\mu", "\\omega"};
    const bool greek = std::find(std::begin(kGreek), std::end(kGreek), name) != std::end(kGreek);
    return greek ? named_letter(std::string(name)) : -1;
  }

  int32_t root() {
    result_.rational = false;
    uint64_t degree = 2;
    if (take("[")) {
      if (!digit(peek()) || text_[at_] < '2') {
        return -1;
      }
      degree = static_cast<uint64_t>(text_[at_++] - '0');
      if (!take("]")) {
        return -1;
      }
    }
    const int32_t inner = group("{", "}");
    return inner < 0 ? -1 : add({.kind = Kind::kRoot, .left = inner, .mantissa = degree});
  }

  std::string_view text_;
  StepBudget& budget_;
  size_t at_ = 0;
  int nesting_ = 0;
  Expression result_;
};

}  // namespace

std::optional<Expression> parse_expression(std::string_view form, StepBudget& budget) {
  return ExpressionParser(form, budget).parse();
}

}  // namespace baleen::rewards
