#include "rewards/math_answer.h"

#include <algorithm>
#include <string>

namespace baleen::rewards {
namespace {

constexpr std::string_view kBlank = " \t\r\n\f\v";
constexpr size_t kAnswerTail = 300;

size_t behind_last(std::string_view text, std::string_view command) {
  const size_t at = text.rfind(command);
  return at == std::string_view::npos ? 0 : at + command.size();
}

}  // namespace

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) {
    return {};
  }
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

std::optional<std::string_view> brace_group(std::string_view text, size_t open) {
  int64_t depth = 0;
  for (size_t i = open; i < text.size(); ++i) {
    if (text[i] == '{') {
      ++depth;
    } else if (text[i] == '}' && --depth == 0) {
      return text.substr(open, i - open + 1);
    }
  }
  return std::nullopt;
}

std::optional<std::string_view> last_boxed(std::string_view text) {
  const size_t begin = std::max(behind_last(text, "\\boxed"), behind_last(text, "\\fbox"));
  if (begin == 0) {
    return std::nullopt;
  }
  const size_t at = text.find_first_not_of(kBlank, begin);
  if (at == std::string_view::npos) {
    return std::nullopt;
  }
  if (text[at] == '{') {
    const auto group = brace_group(text, at);
    return group ? std::optional(trimmed(group->substr(1, group->size() - 2))) : std::nullopt;
  }
  if (at == begin) {
    return std::nullopt;  // some other command
  }
  return trimmed(text.substr(at, text.find('$', at) - at));
}

std::optional<std::string_view> last_answer_line(std::string_view text) {
  const std::string_view tail = text.substr(text.size() - std::min(text.size(), kAnswerTail));
  std::string lower(tail);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  const size_t begin = behind_last(lower, "answer:");
  if (begin == 0) {
    return std::nullopt;
  }
  return trimmed(tail.substr(begin, tail.find('\n', begin) - begin));
}

}  // namespace baleen::rewards
