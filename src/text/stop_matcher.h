#pragma once
// Cuts a text that arrives in pieces at the first stop string. What may be the beginning of a stop
// string is held back until it is decided. The string that is complete first wins, of several that
// end together the longest, so the way of cutting does not matter. One object per text, one thread.
//
//   StopMatcher matcher(stops, include_stop);
//   out += matcher.push(text);   // matcher.matched() once a stop string is complete
//   out += matcher.flush();      // at the end: what was held back

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace baleen::text {

class StopMatcher {
 public:
  /// No stop string is empty. `include_stop`: the matched one is part of the text.
  StopMatcher(std::vector<std::string> stops, bool include_stop);

  std::string push(std::string_view text);
  std::string flush();
  const std::optional<std::string>& matched() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  bool include_stop_;
  std::string held_;
  std::optional<std::string> matched_;
};

}  // namespace baleen::text
