#pragma once
// Finds the answer in a response. Linear time; pure, any thread. Views point into the argument.
//
//   std::optional<std::string_view> answer = last_boxed("so \\boxed{\\frac{1}{2}}.");  //
//   \frac{1}{2}

#include <optional>
#include <string_view>

namespace baleen::rewards {

/// Content of the last \boxed or \fbox: a group whose braces balance, or for "\boxed x" what
/// stands before the next $ or the end. None when there is none or its braces do not balance.
std::optional<std::string_view> last_boxed(std::string_view text);

/// What follows the last "Answer:" (any case) of the last 300 bytes, to the end of its line.
std::optional<std::string_view> last_answer_line(std::string_view text);

std::string_view trimmed(std::string_view text);

/// Bytes of the group that starts with the brace at `open`, both braces included; none when it does
/// not close.
std::optional<std::string_view> brace_group(std::string_view text, size_t open);

}  // namespace baleen::rewards
