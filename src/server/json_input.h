#pragma once
// Request bodies as JSON: valid UTF-8, bounded depth, one object. Pure functions, any thread.
//
//   Result<json::object> body = parse_body(request.body);
//   if (!body.ok()) return body.status();

#include <string_view>

#include <boost/json/object.hpp>

#include "base/result.h"

namespace baleen::server {

namespace json = boost::json;

inline constexpr int kMaxJsonDepth = 64;

/// kInvalidArgument with the byte at fault for anything but one JSON object in UTF-8.
Result<json::object> parse_body(std::string_view body);

/// "integer", "string", ...: how messages name what came.
const char* json_kind_name(const json::value& value);

}  // namespace baleen::server
