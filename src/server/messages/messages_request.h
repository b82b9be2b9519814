#pragma once
// POST /v1/messages and /v1/messages/count_tokens: from the body to the internal request. Pure, any
// thread.
//
//   Result<ApiRequest> request = read_messages_request(body, context);

#include <boost/json/object.hpp>

#include "base/result.h"
#include "server/api_request.h"

namespace baleen::server {

namespace json = boost::json;

Result<ApiRequest> read_messages_request(const json::object& body, const RequestContext& context);

/// {"input_tokens"}: of the prompt that read_messages_request() would make of the same body, in
/// which "max_tokens" may be missing.
Result<json::object> count_message_tokens(const json::object& body, const RequestContext& context);

}  // namespace baleen::server
