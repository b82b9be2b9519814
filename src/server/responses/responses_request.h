#pragma once
// POST /v1/responses: from the body to the internal request. Any thread.
//
//   Result<ApiRequest> request = read_responses_request(body, context);

#include <boost/json/object.hpp>

#include "base/result.h"
#include "server/api_request.h"

namespace baleen::server {

/// kNotFound for a previous_response_id that is not kept.
Result<ApiRequest> read_responses_request(const json::object& body, const RequestContext& context);

}  // namespace baleen::server
