#pragma once
// The last stage of one text field of an answer, reasoning or content: keeps the newlines that may
// belong to a following tool block, sees to it that no marker ever stands in the field, and applies
// the stop strings. Used by OutputStream, one thread.
//
//   VisibleText content(stops, include_stop, true);
//   out += content.push(text);            // text without markers
//   content.drop_held_newlines();         // a tool block follows
//   out += content.flush();

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/stop_matcher.h"

namespace baleen::text {

class VisibleText {
 public:
  /// Without `with_markup` only the stop strings act.
  VisibleText(std::vector<std::string> stops, bool include_stop, bool with_markup);

  std::string push(std::string_view text);
  /// At most two newlines are held at any time.
  void drop_held_newlines() { newlines_.clear(); }
  std::string flush();

  bool stopped() const { return matcher_.matched().has_value(); }
  const std::optional<std::string>& matched() const { return matcher_.matched(); }

 private:
  std::string without_new_markers(std::string_view text);

  StopMatcher matcher_;
  bool with_markup_;
  std::string newlines_;
  std::string tail_;  // end of the text let out so far, as long as the longest marker
};

}  // namespace baleen::text
