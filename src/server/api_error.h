#pragma once
// The one place where a Status becomes an HTTP status and an OpenAI-shaped error body. Pure, any
// thread.
//
//   writer.respond(error_response(Status::invalid("top_p: must be ...", "top_p")));

#include <string>

#include "base/result.h"
#include "http/message.h"

namespace baleen::server {

/// {"error": {"message", "type", "param", "code"}}; param and code are null when empty.
std::string error_body(const Status& status);
http::Response error_response(const Status& status);
/// For errors that the HTTP server itself answers (404, 405, 408, 413, 431, ...).
http::Response http_error_page(int http_status, const std::string& message);
int http_status_of(StatusCode code);

}  // namespace baleen::server
