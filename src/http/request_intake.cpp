#include "http/request_intake.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include <boost/beast/core/string.hpp>
#include <boost/url/parse.hpp>
#include <boost/url/url_view.hpp>

namespace baleen::http {

namespace bh = boost::beast::http;

std::optional<Request> request_of(RequestMessage& message, const std::string& peer) {
  const auto target = boost::urls::parse_origin_form(
      boost::urls::string_view(message.target().data(), message.target().size()));
  if (!target) {
    return std::nullopt;
  }
  Request request;
  request.method = std::string(message.method_string());
  request.peer = peer;
  request.path = target->path();
  for (const auto& item : target->params()) {
    request.query.emplace_back(std::string(item.key), std::string(item.value));
  }
  for (const auto& field : message) {
    request.headers.add(std::string(field.name_string()), std::string(field.value()));
  }
  request.body = std::move(message.body());
  return request;
}

std::optional<Response> coding_refusal(const Request& request, const ConnectionHost& host) {
  const std::string* content = request.headers.find("Content-Encoding");
  if (content != nullptr && !boost::beast::iequals(*content, "identity")) {
    Response response = host.error_page(
        415,
        "Content-Encoding " + *content + " is not supported; send the body as it is",
        request.path);
    response.headers.add("Accept-Encoding", "identity");
    return response;
  }
  const std::string* transfer = request.headers.find("Transfer-Encoding");
  if (transfer != nullptr && !boost::beast::iequals(*transfer, "chunked")) {
    return host.error_page(
        501, "Transfer-Encoding " + *transfer + " is not supported, only chunked", request.path);
  }
  return std::nullopt;
}

Response routing_refusal(const Request& request,
                         const Router::Match& match,
                         const ConnectionHost& host) {
  if (match.allowed_methods.empty()) {
    return host.error_page(404, "no such path: " + request.path, request.path);
  }
  Response response = host.error_page(
      405, "method " + request.method + " is not allowed on " + request.path, request.path);
  std::string allowed;
  for (const std::string& method : match.allowed_methods) {
    allowed += (allowed.empty() ? "" : ", ") + method;
  }
  response.headers.add("Allow", allowed);
  return response;
}

Headers cross_origin_headers(const Request& request, const ServerConfig& config) {
  const std::string* origin = request.headers.find("Origin");
  const std::vector<std::string>& allowed = config.cors_origins;
  if (origin == nullptr || allowed.empty()) {
    return {};
  }
  if (std::find(allowed.begin(), allowed.end(), "*") != allowed.end()) {
    return {{"Access-Control-Allow-Origin", "*"}, {"Access-Control-Expose-Headers", "*"}};
  }
  // Whether it is this origin or not, the answer depends on it.
  if (std::find(allowed.begin(), allowed.end(), *origin) == allowed.end()) {
    return {{"Vary", "Origin"}};
  }
  return {{"Access-Control-Allow-Origin", *origin},
          {"Access-Control-Expose-Headers", "Retry-After, request-id"},
          {"Vary", "Origin"}};
}

std::optional<Response> preflight_answer(const Request& request, const ServerConfig& config) {
  const std::string* method = request.headers.find("Access-Control-Request-Method");
  if (request.method != "OPTIONS" || method == nullptr || config.cors_origins.empty() ||
      cross_origin_headers(request, config).find("Access-Control-Allow-Origin") == nullptr) {
    return std::nullopt;
  }
  Response response;
  response.status = 204;
  response.headers.add("Access-Control-Allow-Methods", "GET, POST, PUT, OPTIONS");
  if (const std::string* headers = request.headers.find("Access-Control-Request-Headers")) {
    response.headers.add("Access-Control-Allow-Headers", *headers);
  }
  response.headers.add("Access-Control-Max-Age", "600");
  return response;
}

ResponseMessage message_of(Response response, const Headers& extra, unsigned version) {
  ResponseMessage message(static_cast<bh::status>(response.status), version);
  for (const Headers* headers : std::initializer_list<const Headers*>{&response.headers, &extra}) {
    for (const auto& [name, value] : headers->fields()) {
      message.insert(name, value);
    }
  }
  message.body() = std::move(response.body);
  return message;
}

EventsMessage events_message_of(const Headers& headers, const Headers& extra, unsigned version) {
  EventsMessage message(bh::status::ok, version);
  message.set(bh::field::content_type, "text/event-stream");
  message.set(bh::field::cache_control, "no-cache");
  message.set("X-Accel-Buffering", "no");
  for (const Headers* list : {&headers, &extra}) {
    for (const auto& [name, value] : list->fields()) {
      message.insert(name, value);
    }
  }
  return message;
}

}  // namespace baleen::http
