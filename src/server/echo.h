#pragma once
// Text of a client as error messages repeat it: enough to recognise it, however long it is. Pure,
// any thread.
//
//   fmt::format("model \"{}\" is not served here", shortened(model));

#include <cstddef>
#include <string>
#include <string_view>

#include <boost/json/value.hpp>

namespace baleen::server {

inline constexpr std::size_t kMaxEchoBytes = 200;

/// `text`, or as many whole characters of it as fit `max_bytes` and "...".
std::string shortened(std::string_view text, std::size_t max_bytes = kMaxEchoBytes);

/// `value` as JSON, shortened.
std::string shown(const boost::json::value& value);

}  // namespace baleen::server
