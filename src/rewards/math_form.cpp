#include "rewards/math_form.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "rewards/math_answer.h"

namespace baleen::rewards {
namespace {

constexpr int kMaxDepth = 24;
constexpr std::string_view kDegree = "\xC2\xB0";
constexpr std::string_view kMinusSign = "\xE2\x88\x92";

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_blank(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

template <size_t count>
bool among(std::string_view name, const std::array<std::string_view, count>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

constexpr std::array<std::string_view, 5> kFractions = {"frac", "dfrac", "tfrac", "cfrac", "sfrac"};
constexpr std::array<std::string_view, 9> kTexts = {
    "text", "mbox", "textbf", "textit", "textrm", "mathrm", "mathbf", "mathit", "operatorname"};
constexpr std::array<std::string_view, 9> kNothing = {
    "left", "right", "big", "Big", "quad", "qquad", "displaystyle", "degree", "limits"};

/// Reads LaTeX from left to right and writes the one spelling.
class FormWriter {
 public:
  FormWriter(std::string_view text, StepBudget& budget, int depth)
      : text_(text), budget_(budget), depth_(depth) {}

  std::string write() {
    while (at_ < text_.size() && budget_.spend()) {
      step();
    }
    return std::move(out_);
  }

 private:
  void step() {
    const char c = text_[at_];
    if (is_blank(c) || c == '$' || c == '%') {
      ++at_;
    } else if (starts_with(kDegree)) {
      at_ += kDegree.size();
    } else if (starts_with(kMinusSign)) {
      out_ += '-';
      at_ += kMinusSign.size();
    } else if (c == '^' && skip_circle()) {
      // a degree sign
    } else if (c == '\\') {
      command();
    } else if (c == '.' && at_ + 1 < text_.size() && is_digit(text_[at_ + 1]) &&
               (out_.empty() || !is_digit(out_.back()))) {
      out_ += "0.";
      ++at_;
    } else {
      separate(c);
      out_ += c;
      ++at_;
    }
  }

  /// A letter behind a command would become part of its name: "\pi r".
  void separate(char next) {
    if (is_letter(next) && !out_.empty() && out_.size() == command_end_) {
      out_ += ' ';
    }
  }

  bool starts_with(std::string_view what) const { return text_.substr(at_).starts_with(what); }

  /// ^\circ or ^{\circ}.
  bool skip_circle() {
    for (const std::string_view circle : {"^\\circ", "^{\\circ}"}) {
      if (starts_with(circle)) {
        at_ += circle.size();
        return true;
      }
    }
    return false;
  }

  void command() {
    size_t end = at_ + 1;
    while (end < text_.size() && is_letter(text_[end])) {
      ++end;
    }
    if (end == at_ + 1) {
      symbol();
      return;
    }
    const std::string_view name = text_.substr(at_ + 1, end - at_ - 1);
    if (among(name, kNothing)) {
      at_ = end;
    } else if (name == "cdot" || name == "times") {
      out_ += '*';
      at_ = end;
    } else if (name == "div") {
      out_ += '/';
      at_ = end;
    } else if (among(name, kFractions)) {
      at_ = end;
      out_ += "\\frac";
      out_ += argument();
      out_ += argument();
    } else if (name == "sqrt") {
      at_ = end;
      out_ += "\\sqrt";
      root_degree();
      out_ += argument();
    } else if (among(name, kTexts)) {
      at_ = end;
      words();
    } else {
      out_ += text_.substr(at_, end - at_);
      command_end_ = out_.size();
      at_ = end;
    }
  }

  /// A backslash before something that is no letter: spacing is dropped, braces are kept.
  void symbol() {
    if (at_ + 1 < text_.size() && (text_[at_ + 1] == '{' || text_[at_ + 1] == '}')) {
      out_ += text_.substr(at_, 2);
    }
    at_ = std::min(at_ + 2, text_.size());
  }

  void skip_blanks() {
    while (at_ < text_.size() && is_blank(text_[at_])) {
      ++at_;
    }
  }

  std::string inner(std::string_view part) {
    if (depth_ >= kMaxDepth || !budget_.spend(static_cast<int64_t>(part.size()))) {
      return std::string(part);
    }
    return FormWriter(part, budget_, depth_ + 1).write();
  }

  /// The next argument with its braces: a group, a command, or one character.
  std::string argument() {
    skip_blanks();
    if (at_ >= text_.size()) {
      return {};
    }
    if (text_[at_] == '{') {
      const auto group = brace_group(text_, at_);
      if (!group) {
        return {};
      }
      at_ += group->size();
      return '{' + inner(group->substr(1, group->size() - 2)) + '}';
    }
    size_t end = at_ + 1;
    if (text_[at_] == '\\') {
      while (end < text_.size() && is_letter(text_[end])) {
        ++end;
      }
    }
    const std::string_view part = text_.substr(at_, end - at_);
    at_ = end;
    return '{' + std::string(part) + '}';
  }

  void root_degree() {
    skip_blanks();
    if (at_ < text_.size() && text_[at_] == '[') {
      const size_t close = text_.find(']', at_);
      if (close != std::string_view::npos) {
        out_ += '[' + inner(text_.substr(at_ + 1, close - at_ - 1)) + ']';
        at_ = close + 1;
      }
    }
  }

  /// \text{...}: at the end behind something it is a unit; elsewhere its words count.
  void words() {
    skip_blanks();
    const auto group = at_ < text_.size() && text_[at_] == '{' ? brace_group(text_, at_)
                                                               : std::optional<std::string_view>();
    if (!group) {
      return;
    }
    at_ += group->size();
    const bool unit = !out_.empty() && depth_ == 0 && rest_is_empty();
    if (unit) {
      at_ = text_.size();
    } else {
      const std::string words = inner(group->substr(1, group->size() - 2));
      separate(words.empty() ? '\0' : words.front());
      out_ += words;
    }
  }

  /// Whether nothing follows but the power of a unit, a full stop, signs that are dropped.
  bool rest_is_empty() const {
    std::string_view rest = text_.substr(at_);
    for (const std::string_view power : {"^2", "^3", "^{2}", "^{3}"}) {
      if (rest.starts_with(power)) {
        rest.remove_prefix(power.size());
        break;
      }
    }
    return std::all_of(rest.begin(), rest.end(), [](char c) {
      return is_blank(c) || c == '$' || c == '.' || c == '%';
    });
  }

  std::string_view text_;
  StepBudget& budget_;
  int depth_;
  size_t at_ = 0;
  size_t command_end_ = 0;  // of out_, behind the last command
  std::string out_;
};

/// 12,345,678 -> 12345678: one to three digits, then groups of exactly three; not inside brackets,
/// where commas separate.
std::string without_thousands(const std::string& text) {
  std::string out;
  size_t i = 0;
  int depth = 0;
  while (i < text.size()) {
    const bool set_brace = (text[i] == '{' || text[i] == '}') && i > 0 && text[i - 1] == '\\';
    if (text[i] == '(' || text[i] == '[' || (set_brace && text[i] == '{')) {
      ++depth;
    } else if (text[i] == ')' || text[i] == ']' || set_brace) {
      --depth;
    }
    size_t end = i;
    while (end < text.size() && is_digit(text[end])) {
      ++end;
    }
    const size_t head = end - i;
    if (head == 0) {
      out += text[i++];
      continue;
    }
    const bool behind_point = !out.empty() && out.back() == '.';
    size_t groups = end;
    while (depth == 0 && !behind_point && head <= 3 && groups + 3 < text.size() &&
           text[groups] == ',' && is_digit(text[groups + 1]) && is_digit(text[groups + 2]) &&
           is_digit(text[groups + 3])) {
      groups += 4;
    }
    const bool digits_go_on = groups < text.size() && is_digit(text[groups]);
    const size_t stop = digits_go_on ? end : groups;
    for (; i < stop; ++i) {
      if (text[i] != ',') {
        out += text[i];
      }
    }
  }
  return out;
}

/// "x=5" -> "5" where at most two letters stand on the left.
std::string_view right_side(std::string_view text) {
  const size_t equals = text.find('=');
  const bool once = equals != std::string_view::npos && text.rfind('=') == equals;
  if (!once || equals == 0 || equals > 2 ||
      !std::all_of(text.begin(), text.begin() + static_cast<ptrdiff_t>(equals), is_letter)) {
    return text;
  }
  return text.substr(equals + 1);
}

/// a/b of integers as a fraction.
std::string slash_as_fraction(std::string_view text) {
  const size_t slash = text.find('/');
  const size_t begin = !text.empty() && text[0] == '-' ? 1 : 0;
  const auto digits = [](std::string_view part) {
    return !part.empty() && std::all_of(part.begin(), part.end(), is_digit);
  };
  if (slash == std::string_view::npos || slash < begin || !digits(text.substr(slash + 1)) ||
      !digits(text.substr(begin, slash - begin))) {
    return std::string(text);
  }
  std::string out(text.substr(0, begin));
  out += "\\frac{";
  out += text.substr(begin, slash - begin);
  out += "}{";
  out += text.substr(slash + 1);
  return out + '}';
}

}  // namespace

std::string math_form(std::string_view text, StepBudget& budget) {
  std::string_view whole = trimmed(text);
  for (const auto& [open, close] :
       {std::pair<std::string_view, std::string_view>{"$", "$"}, {"\\(", "\\)"}, {"\\[", "\\]"}}) {
    if (whole.size() >= open.size() + close.size() && whole.starts_with(open) &&
        whole.ends_with(close)) {
      whole = trimmed(whole.substr(open.size(), whole.size() - open.size() - close.size()));
    }
  }
  while (whole.ends_with('.')) {
    whole = trimmed(whole.substr(0, whole.size() - 1));
  }
  const std::string plain = without_thousands(FormWriter(whole, budget, 0).write());
  std::string_view result = right_side(plain);
  while (result.ends_with('.')) {
    result.remove_suffix(1);
  }
  return slash_as_fraction(result);
}

}  // namespace baleen::rewards
