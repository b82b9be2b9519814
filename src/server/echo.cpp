#include "server/echo.h"

#include <boost/json/serialize.hpp>

namespace baleen::server {

std::string shortened(std::string_view text, std::size_t max_bytes) {
  constexpr std::string_view kMore = "...";
  if (text.size() <= max_bytes) {
    return std::string(text);
  }
  std::size_t end = max_bytes - kMore.size();
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) {
    --end;  // inside a character
  }
  return std::string(text.substr(0, end)).append(kMore);
}

std::string shown(const boost::json::value& value) {
  return shortened(boost::json::serialize(value));
}

}  // namespace baleen::server
