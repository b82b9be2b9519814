#pragma once
// POST /v1/chat/completions: reads the request, decides about thinking, renders and encodes the
// prompt.
//
//   Result<ApiRequest> request = read_chat_request(body, context);

#include "base/result.h"
#include "server/api_request.h"

namespace baleen::server {

Result<ApiRequest> read_chat_request(const json::object& body, const RequestContext& context);

}  // namespace baleen::server
