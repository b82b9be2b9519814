#include "text/added_token_set.h"

#include <algorithm>

namespace baleen::text {

AddedTokenSet::AddedTokenSet(std::vector<std::pair<std::string, int32_t>> tokens)
    : tokens_(std::move(tokens)) {
  std::sort(tokens_.begin(), tokens_.end());
  for (const auto& [text, id] : tokens_) {
    starts_[static_cast<uint8_t>(text[0])] = true;
  }
}

const std::pair<std::string, int32_t>* AddedTokenSet::longest_at_front(
    std::string_view text) const {
  // The tokens that agree with `text` so far are a range of the sorted list, and the one that ends
  // here, if any, is its first.
  auto begin = tokens_.begin();
  auto end = tokens_.end();
  const std::pair<std::string, int32_t>* longest = nullptr;
  for (size_t depth = 0; depth < text.size() && begin != end; ++depth) {
    const auto byte = static_cast<uint8_t>(text[depth]);
    begin = std::partition_point(begin, end, [&](const auto& token) {
      return token.first.size() <= depth || static_cast<uint8_t>(token.first[depth]) < byte;
    });
    end = std::partition_point(begin, end, [&](const auto& token) {
      return static_cast<uint8_t>(token.first[depth]) == byte;
    });
    if (begin != end && begin->first.size() == depth + 1) {
      longest = &*begin;
    }
  }
  return longest;
}

std::optional<AddedTokenSet::Match> AddedTokenSet::find(std::string_view text, size_t from) const {
  for (size_t i = from; i < text.size(); ++i) {
    if (!starts_[static_cast<uint8_t>(text[i])]) {
      continue;
    }
    if (const auto* token = longest_at_front(text.substr(i))) {
      return Match{i, token->first.size(), token->second};
    }
  }
  return std::nullopt;
}

}  // namespace baleen::text
