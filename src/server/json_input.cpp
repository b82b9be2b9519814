#include "server/json_input.h"

#include <boost/json/stream_parser.hpp>
#include <fmt/format.h>

namespace baleen::server {

Result<json::object> parse_body(std::string_view body) {
  if (body.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    return Status::invalid("the request body is empty, expected a JSON object");
  }
  json::parse_options options;
  options.max_depth = kMaxJsonDepth;
  json::stream_parser parser({}, options);
  json::error_code error;
  const size_t taken = parser.write_some(body.data(), body.size(), error);
  if (!error && body.substr(taken).find_first_not_of(" \t\r\n") != std::string_view::npos) {
    error = json::error::extra_data;
  }
  if (!error) {
    parser.finish(error);
  }
  if (error == json::error::too_deep) {
    return Status::invalid(
        fmt::format("the request body is nested deeper than {} levels", kMaxJsonDepth));
  }
  if (error) {
    return Status::invalid(
        fmt::format("the request body is not valid JSON: {} at byte {}", error.message(), taken));
  }
  json::value value = parser.release();
  if (!value.is_object()) {
    return Status::invalid(
        fmt::format("the request body must be a JSON object, is {}", json_kind_name(value)));
  }
  return std::move(value.get_object());
}

const char* json_kind_name(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return "a boolean";
    case json::kind::int64:
    case json::kind::uint64:
      return "an integer";
    case json::kind::double_:
      return "a number";
    case json::kind::string:
      return "a string";
    case json::kind::array:
      return "an array";
    case json::kind::object:
      return "an object";
  }
  return "?";
}

}  // namespace baleen::server
