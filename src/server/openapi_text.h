#pragma once
// The description of all paths that GET /openapi.json gives: docs/serving/openapi.json as it was
// when the program was built. Constant, any thread.

#include <string_view>

namespace baleen::server {

std::string_view openapi_text();

}  // namespace baleen::server
