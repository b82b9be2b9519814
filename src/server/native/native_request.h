#pragma once
// POST /generate: text or token ids in, text and token ids out, for one prompt or a list. From the
// body to the internal request. Pure, any thread.
//
//   Result<ApiRequest> request = read_native_request(body, context);

#include <boost/json/object.hpp>

#include "base/result.h"
#include "server/api_request.h"

namespace baleen::server {

Result<ApiRequest> read_native_request(const json::object& body, const RequestContext& context);

}  // namespace baleen::server
