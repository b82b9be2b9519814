#pragma once
// POST /v1/completions: the caller writes the prompt, control tokens included.
//
//   Result<ApiRequest> request = read_completion_request(body, context);

#include "base/result.h"
#include "server/api_request.h"

namespace baleen::server {

Result<ApiRequest> read_completion_request(const json::object& body, const RequestContext& context);

}  // namespace baleen::server
