#pragma once
// The one place where a Status becomes an HTTP status and an error body of the dialect. Pure, any
// thread.
//
//   writer.respond(error_response(Status::invalid("top_p: must be ...", "top_p")));

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "http/message.h"

namespace baleen::server {

/// How a dialect writes an error: {"error": {"message", "type", "param", "code"}}, where param and
/// code are null when empty, or {"type": "error", "error": {"type", "message"}}.
enum class ErrorForm : uint8_t { kOpenAi, kAnthropic };

/// The form that the clients of this path know.
ErrorForm error_form_of(std::string_view path);

std::string error_body(const Status& status, ErrorForm form = ErrorForm::kOpenAi);
http::Response error_response(const Status& status, ErrorForm form = ErrorForm::kOpenAi);
/// For errors that the HTTP server itself answers (404, 405, 408, 413, 431, ...).
http::Response http_error_page(int http_status, const std::string& message, std::string_view path);
int http_status_of(StatusCode code);

}  // namespace baleen::server
