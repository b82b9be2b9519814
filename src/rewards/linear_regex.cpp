#include "rewards/linear_regex.h"

#include <algorithm>

#include <fmt/format.h>

namespace baleen::rewards {
namespace {

using Op = LinearRegex::Op;
using Assertion = LinearRegex::Assertion;
using Instruction = LinearRegex::Instruction;
using CharacterSet = LinearRegex::CharacterSet;

constexpr size_t kMaxProgram = 20'000;
constexpr int kMaxGroups = 200;
constexpr int kMaxRepeat = 1'000;
constexpr char32_t kLastCode = 0x10FFFF;
constexpr char32_t kReplacement = 0xFFFD;

/// Code points; bytes that are no UTF-8 become U+FFFD, one each.
std::u32string code_points(std::string_view text) {
  std::u32string codes;
  codes.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const size_t length = lead < 0x80   ? 1
                          : lead < 0xC2 ? 0
                          : lead < 0xE0 ? 2
                          : lead < 0xF0 ? 3
                          : lead < 0xF5 ? 4
                                        : 0;
    char32_t code = length == 1   ? lead
                    : length == 0 ? kReplacement
                                  : lead & (0xFFU >> (length + 1));
    bool valid = length != 0 && i + length <= text.size();
    for (size_t k = 1; valid && k < length; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      valid = (next & 0xC0U) == 0x80U;
      code = (code << 6U) | (next & 0x3FU);
    }
    codes += valid ? code : kReplacement;
    i += valid ? length : 1;
  }
  return codes;
}

bool regex_word(char32_t c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

void add_class(char32_t name, std::vector<LinearRegex::Range>& ranges) {
  switch (name) {
    case 'd':
      ranges.emplace_back('0', '9');
      break;
    case 'w':
      ranges.insert(ranges.end(), {{'0', '9'}, {'A', 'Z'}, {'a', 'z'}, {'_', '_'}});
      break;
    default:
      ranges.insert(ranges.end(), {{'\t', '\r'}, {' ', ' '}});
      break;
  }
}

/// What the ranges leave out.
std::vector<LinearRegex::Range> complement(std::vector<LinearRegex::Range> ranges) {
  std::sort(ranges.begin(), ranges.end());
  std::vector<LinearRegex::Range> rest;
  char32_t next = 0;
  for (const auto& [low, high] : ranges) {
    if (low > next) {
      rest.emplace_back(next, low - 1);
    }
    next = std::max<char32_t>(next, high + 1);
  }
  if (next <= kLastCode) {
    rest.emplace_back(next, kLastCode);
  }
  return rest;
}

}  // namespace

bool LinearRegex::CharacterSet::contains(char32_t c) const {
  const bool inside = std::any_of(ranges.begin(), ranges.end(), [c](const Range& range) {
    return c >= range.first && c <= range.second;
  });
  return inside != negated;
}

/// Recursive descent that writes the program as it reads; fragments are position independent once
/// copied, as targets are kept relative to their own place.
class RegexCompiler {
 public:
  explicit RegexCompiler(std::string_view pattern) : pattern_(code_points(pattern)) {}

  Result<LinearRegex> compile() {
    flags();
    Code code = alternatives();
    if (error_.empty() && at_ < pattern_.size()) {
      fail("a ) without (");
    }
    if (!error_.empty()) {
      return Status::invalid(fmt::format("regular expression: {}", error_));
    }
    code.push_back({.op = Op::kMatch});
    for (size_t i = 0; i < code.size(); ++i) {
      const auto place = static_cast<int32_t>(i);
      if (code[i].op == Op::kSplit || code[i].op == Op::kJump) {
        code[i].first += place;
        code[i].second += place;
      }
    }
    regex_.program_ = std::move(code);
    return std::move(regex_);
  }

 private:
  using Code = std::vector<Instruction>;

  void fail(const std::string& what) {
    if (error_.empty()) {
      error_ = fmt::format("{} at character {}", what, at_ + 1);
    }
  }
  bool failed() const { return !error_.empty(); }
  bool take(char32_t c) {
    if (at_ < pattern_.size() && pattern_[at_] == c) {
      ++at_;
      return true;
    }
    return false;
  }
  char32_t peek(size_t ahead = 0) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : U'\0';
  }

  void flags() {
    if (peek() != '(' || peek(1) != '?' || (peek(2) != 'i' && peek(2) != 's' && peek(2) != 'm')) {
      return;
    }
    at_ += 2;
    for (; peek() == 'i' || peek() == 's' || peek() == 'm'; ++at_) {
      ignore_case_ = ignore_case_ || peek() == 'i';
      dot_all_ = dot_all_ || peek() == 's';
      lines_ = lines_ || peek() == 'm';
    }
    if (!take(')')) {
      fail("only (?i), (?s) and (?m) at the front are known");
    }
  }

  Code alternatives() {
    if (++groups_open_ > kMaxGroups) {
      fail("groups nested too deeply");
      return {};
    }
    Code code = sequence();
    while (!failed() && take('|')) {
      const Code other = sequence();
      // split first, second; first; jump end; second
      Code joined;
      const auto length = static_cast<int32_t>(code.size());
      joined.push_back({.op = Op::kSplit, .first = 1, .second = length + 2});
      append(joined, code);
      joined.push_back({.op = Op::kJump, .first = static_cast<int32_t>(other.size()) + 1});
      append(joined, other);
      code = std::move(joined);
    }
    --groups_open_;
    return code;
  }

  Code sequence() {
    Code code;
    while (!failed() && at_ < pattern_.size() && peek() != '|' && peek() != ')') {
      append(code, repeated());
    }
    return code;
  }

  void append(Code& code, const Code& more) {
    if (code.size() + more.size() > kMaxProgram) {
      fail("it is too large");
      return;
    }
    code.insert(code.end(), more.begin(), more.end());
  }

  Code repeated() {
    Code code = atom();
    while (!failed()) {
      int low = 0;
      int high = -1;  // no bound
      if (take('*')) {
      } else if (take('+')) {
        low = 1;
      } else if (take('?')) {
        high = 1;
      } else if (peek() == '{' && peek(1) >= '0' && peek(1) <= '9') {
        bounds(low, high);
      } else {
        break;
      }
      take('?');  // lazy: the same set of matches
      code = repeat(code, low, high);
    }
    return code;
  }

  void bounds(int& low, int& high) {
    ++at_;
    low = count();
    high = low;
    if (take(',')) {
      high = peek() == '}' ? -1 : count();
    }
    if (!take('}') || (high >= 0 && high < low)) {
      fail("a malformed {n,m}");
    }
  }
  int count() {
    int value = 0;
    for (; peek() >= '0' && peek() <= '9'; ++at_) {
      value = value * 10 + static_cast<int>(peek() - '0');
      if (value > kMaxRepeat) {
        fail("a repetition above 1000");
        return 0;
      }
    }
    return value;
  }

  Code repeat(const Code& body, int low, int high) {
    Code code;
    for (int i = 0; i < low && !failed(); ++i) {
      append(code, body);
    }
    const auto length = static_cast<int32_t>(body.size());
    if (high < 0) {
      // split body, out; body; jump back
      code.push_back({.op = Op::kSplit, .first = 1, .second = length + 2});
      append(code, body);
      code.push_back({.op = Op::kJump, .first = -(length + 1)});
    }
    for (int i = low; i < high && !failed(); ++i) {
      code.push_back({.op = Op::kSplit, .first = 1, .second = length + 1});
      append(code, body);
    }
    return code;
  }

  Code set_of(CharacterSet set) {
    if (ignore_case_) {
      const auto ranges = set.ranges;
      for (const auto& [low, high] : ranges) {
        for (char32_t c = std::max<char32_t>(low, 'A'); c <= std::min<char32_t>(high, 'z'); ++c) {
          const char32_t lower = c | 0x20U;
          if (lower >= 'a' && lower <= 'z') {
            set.ranges.emplace_back(c ^ 0x20U, c ^ 0x20U);
          }
        }
      }
    }
    regex_.sets_.push_back(std::move(set));
    return {{.op = Op::kSet, .first = static_cast<int32_t>(regex_.sets_.size()) - 1}};
  }
  Code assertion(Assertion kind) { return {{.op = Op::kAssert, .assertion = kind}}; }

  Code atom() {
    const char32_t c = pattern_[at_++];
    switch (c) {
      case '.':
        return set_of({dot_all_ ? std::vector<LinearRegex::Range>{}
                                : std::vector<LinearRegex::Range>{{'\n', '\n'}},
                       true});
      case '^':
        return assertion(lines_ ? Assertion::kLineBegin : Assertion::kBegin);
      case '$':
        return assertion(lines_ ? Assertion::kLineEnd : Assertion::kEnd);
      case '(':
        return group();
      case '[':
        return bracket_set();
      case '\\':
        return escape();
      case '*':
      case '+':
      case '?':
        --at_;
        fail("nothing to repeat");
        return {};
      default:
        return set_of({{{c, c}}, false});
    }
  }

  Code group() {
    if (take('?') && !take(':')) {
      fail("look-around, named and inline groups are not supported");
      return {};
    }
    Code code = alternatives();
    if (!failed() && !take(')')) {
      fail("a ( without )");
    }
    return code;
  }

  Code escape() {
    if (at_ >= pattern_.size()) {
      fail("a \\ at the end");
      return {};
    }
    const char32_t c = pattern_[at_++];
    if (c == 'b' || c == 'B') {
      return assertion(c == 'b' ? Assertion::kWordEdge : Assertion::kNoWordEdge);
    }
    if (c >= '1' && c <= '9') {
      fail("back-references are not supported");
      return {};
    }
    CharacterSet set;
    add_escaped(c, set.ranges);
    return set_of(std::move(set));
  }

  /// Adds what \c stands for; returns its code point when that is a single one.
  std::optional<char32_t> add_escaped(char32_t c, std::vector<LinearRegex::Range>& ranges) {
    if (c == 'd' || c == 'w' || c == 's') {
      add_class(c, ranges);
      return std::nullopt;
    }
    if (c == 'D' || c == 'W' || c == 'S') {
      std::vector<LinearRegex::Range> inside;
      add_class(c | 0x20U, inside);
      const auto outside = complement(std::move(inside));
      ranges.insert(ranges.end(), outside.begin(), outside.end());
      return std::nullopt;
    }
    char32_t code = c;
    if (c == 'n' || c == 't' || c == 'r' || c == 'f' || c == 'v') {
      code = c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c == 'f' ? '\f' : '\v';
    } else if (regex_word(c) && c != '_') {
      fail("an unknown escape");
    }
    ranges.emplace_back(code, code);
    return code;
  }

  Code bracket_set() {
    CharacterSet set;
    set.negated = take('^');
    bool first = true;
    while (!failed()) {
      if (at_ >= pattern_.size()) {
        fail("a [ without ]");
        break;
      }
      char32_t low = pattern_[at_++];
      if (low == ']' && !first) {
        break;
      }
      first = false;
      if (low == '\\' && at_ < pattern_.size()) {
        const auto single = add_escaped(pattern_[at_++], set.ranges);
        if (!single) {
          continue;
        }
        low = *single;
      } else {
        set.ranges.emplace_back(low, low);
      }
      if (peek() == '-' && peek(1) != ']' && at_ + 1 < pattern_.size()) {
        ++at_;
        char32_t high = pattern_[at_++];
        if (high == '\\' && at_ < pattern_.size()) {
          high = add_escaped(pattern_[at_++], set.ranges).value_or(0);
        }
        if (high < low) {
          fail("a range that runs backwards");
        }
        set.ranges.emplace_back(low, high);
      }
    }
    return set_of(std::move(set));
  }

  std::u32string pattern_;
  size_t at_ = 0;
  int groups_open_ = 0;
  bool ignore_case_ = false;
  bool dot_all_ = false;
  bool lines_ = false;
  std::string error_;
  LinearRegex regex_;
};

Result<LinearRegex> LinearRegex::compile(std::string_view pattern) {
  return RegexCompiler(pattern).compile();
}

namespace {

bool holds(Assertion assertion, const std::u32string& text, size_t at) {
  const bool word_before = at > 0 && regex_word(text[at - 1]);
  const bool word_behind = at < text.size() && regex_word(text[at]);
  switch (assertion) {
    case Assertion::kBegin:
      return at == 0;
    case Assertion::kEnd:
      return at == text.size();
    case Assertion::kLineBegin:
      return at == 0 || text[at - 1] == '\n';
    case Assertion::kLineEnd:
      return at == text.size() || text[at] == '\n';
    case Assertion::kWordEdge:
      return word_before != word_behind;
    case Assertion::kNoWordEdge:
      return word_before == word_behind;
  }
  return false;
}

}  // namespace

std::optional<bool> LinearRegex::search(std::string_view text, StepBudget& budget) const {
  const std::u32string codes = code_points(text);
  std::vector<int32_t> current;  // kSet instructions that wait for a code point
  std::vector<int32_t> waiting;
  std::vector<int32_t> stack;
  std::vector<size_t> seen(program_.size(), 0);  // 1 + the position an instruction was reached at
  bool matched = false;
  // Follows jumps, splits and assertions from `start` at position `at`.
  const auto follow = [&](int32_t start, size_t at, std::vector<int32_t>& into) {
    stack.push_back(start);
    while (!stack.empty() && !matched && budget.spend()) {
      const int32_t place = stack.back();
      stack.pop_back();
      if (seen[static_cast<size_t>(place)] == at + 1) {
        continue;
      }
      seen[static_cast<size_t>(place)] = at + 1;
      const Instruction& instruction = program_[static_cast<size_t>(place)];
      switch (instruction.op) {
        case Op::kMatch:
          matched = true;
          break;
        case Op::kSet:
          into.push_back(place);
          break;
        case Op::kSplit:
          stack.push_back(instruction.second);
          stack.push_back(instruction.first);
          break;
        case Op::kJump:
          stack.push_back(instruction.first);
          break;
        case Op::kAssert:
          if (holds(instruction.assertion, codes, at)) {
            stack.push_back(place + 1);
          }
          break;
      }
    }
    stack.clear();
  };
  for (size_t at = 0; at <= codes.size() && !matched && !budget.spent(); ++at) {
    // `current` was filled at this position by the step before; a match may also begin here.
    follow(0, at, current);
    if (at == codes.size() || matched) {
      break;
    }
    waiting.clear();
    for (const int32_t place : current) {
      const Instruction& instruction = program_[static_cast<size_t>(place)];
      if (budget.spend() && sets_[static_cast<size_t>(instruction.first)].contains(codes[at])) {
        follow(place + 1, at + 1, waiting);
      }
    }
    std::swap(current, waiting);
  }
  if (matched) {
    return true;
  }
  return budget.spent() ? std::nullopt : std::optional(false);
}

}  // namespace baleen::rewards
