#pragma once
// Finds the strings of a fixed set inside a text: the leftmost match, of those the longest. Holds
// the set sorted; immutable, any thread.
//
//   AddedTokenSet set({{"<think>", 7}});
//   if (auto match = set.find(text, from)) use(match->begin, match->num_bytes, match->id);

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace baleen::text {

class AddedTokenSet {
 public:
  struct Match {
    size_t begin = 0;
    size_t num_bytes = 0;
    int32_t id = -1;
  };

  AddedTokenSet() = default;
  /// Texts are distinct and not empty.
  explicit AddedTokenSet(std::vector<std::pair<std::string, int32_t>> tokens);

  std::optional<Match> find(std::string_view text, size_t from) const;

 private:
  /// The longest token that starts at the front of `text`.
  const std::pair<std::string, int32_t>* longest_at_front(std::string_view text) const;

  std::vector<std::pair<std::string, int32_t>> tokens_;  // sorted by text
  std::array<bool, 256> starts_{};                       // bytes that some token starts with
};

}  // namespace baleen::text
