#include "server/api_error.h"

#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>

#include "server/echo.h"

namespace baleen::server {
namespace {

namespace json = boost::json;

constexpr const char* kRetryAfterSeconds = "1";
constexpr size_t kMaxMessageBytes = 1000;  // whatever of the request a message repeats

const char* error_type(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 500:
      return "server_error";
    case 503:
      return "service_unavailable";
    default:
      return "invalid_request_error";
  }
}

const char* anthropic_error_type(int http_status) {
  switch (http_status) {
    case 408:
      return "timeout_error";
    case 500:
    case 501:
      return "api_error";
    case 503:
      return "overloaded_error";
    default:
      return error_type(http_status);  // the others have the same names
  }
}

std::string body_of(int http_status,
                    const std::string& message,
                    const std::string& param,
                    const std::string& code,
                    ErrorForm form) {
  if (form == ErrorForm::kAnthropic) {
    const json::object error{{"type", anthropic_error_type(http_status)},
                             {"message", shortened(message, kMaxMessageBytes)}};
    return json::serialize(json::object{{"type", "error"}, {"error", error}});
  }
  const auto or_null = [](const std::string& text) {
    return text.empty() ? json::value(nullptr) : json::value(text);
  };
  const json::object error{{"message", shortened(message, kMaxMessageBytes)},
                           {"type", error_type(http_status)},
                           {"param", or_null(shortened(param))},
                           {"code", or_null(code)}};
  return json::serialize(json::object{{"error", error}});
}

}  // namespace

int http_status_of(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return 200;
    case StatusCode::kInvalidArgument:
      return 400;
    case StatusCode::kUnauthenticated:
      return 401;
    case StatusCode::kPermissionDenied:
      return 403;
    case StatusCode::kNotFound:
      return 404;
    case StatusCode::kTooLarge:
      return 413;
    case StatusCode::kResourceExhausted:
      return 429;
    case StatusCode::kCancelled:
    case StatusCode::kUnavailable:
      return 503;
    case StatusCode::kInternal:
      return 500;
  }
  return 500;
}

ErrorForm error_form_of(std::string_view path) {
  return path.starts_with("/v1/messages") ? ErrorForm::kAnthropic : ErrorForm::kOpenAi;
}

std::string error_body(const Status& status, ErrorForm form) {
  return body_of(http_status_of(status.code), status.message, status.param, status.api_code, form);
}

http::Response error_response(const Status& status, ErrorForm form) {
  http::Response response =
      http::Response::json(http_status_of(status.code), error_body(status, form));
  if (response.status == 429 || response.status == 503) {
    response.headers.add("Retry-After", kRetryAfterSeconds);
  }
  if (response.status == 401) {
    response.headers.add("WWW-Authenticate", "Bearer");
  }
  return response;
}

http::Response http_error_page(int http_status, const std::string& message, std::string_view path) {
  return http::Response::json(http_status,
                              body_of(http_status, message, {}, {}, error_form_of(path)));
}

}  // namespace baleen::server
