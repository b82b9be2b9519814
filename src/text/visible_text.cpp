#include "text/visible_text.h"

#include <array>
#include <utility>

#include "text/chat_markup.h"
#include "text/tokenizer.h"

namespace baleen::text {
namespace {

constexpr size_t kMaxHeldNewlines = 2;
constexpr size_t kTailBytes = 64;  // more than the longest marker

constexpr std::array<std::string_view, 5> kNeverVisible = {
    kBosText, kEosText, kThinkBegin, kThinkEnd, kDsml};

/// Bytes of the last character of `marker`: `>` or U+FF5C.
size_t last_character_bytes(std::string_view marker) {
  return marker.back() == '>' ? 1 : 3;
}

}  // namespace

VisibleText::VisibleText(std::vector<std::string> stops, bool include_stop, bool with_markup)
    : matcher_(std::move(stops), include_stop), with_markup_(with_markup) {}

std::string VisibleText::push(std::string_view text) {
  if (!with_markup_) {
    return matcher_.push(text);
  }
  std::string ready = std::exchange(newlines_, {});
  ready += text;
  while (newlines_.size() < kMaxHeldNewlines && ready.ends_with('\n')) {
    ready.pop_back();
    newlines_ += '\n';
  }
  return matcher_.push(without_new_markers(ready));
}

std::string VisibleText::flush() {
  std::string out = matcher_.push(std::exchange(newlines_, {}));
  return out + matcher_.flush();
}

/// Where a marker was taken out, the text around it may join to another one. The character that
/// would complete it is left out.
std::string VisibleText::without_new_markers(std::string_view text) {
  std::string out;
  for (const char c : text) {
    out += c;
    tail_ += c;
    if (c != kThinkEnd.back() && c != kDsml.back()) {
      continue;
    }
    for (const std::string_view marker : kNeverVisible) {
      if (tail_.ends_with(marker)) {
        const size_t num_bytes = last_character_bytes(marker);
        out.resize(out.size() - num_bytes);
        tail_.resize(tail_.size() - num_bytes);
        break;
      }
    }
  }
  if (tail_.size() > kTailBytes) {
    tail_.erase(0, tail_.size() - kTailBytes);
  }
  return out;
}

}  // namespace baleen::text
