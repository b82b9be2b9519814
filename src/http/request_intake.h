#pragma once
// Between the parser's messages and the room's plain values, both ways; and what is refused before
// any handler sees it. Inside the room only. Pure, any thread.
//
//   std::optional<Request> request = request_of(parser.get(), peer);   // none: malformed target

#include <optional>
#include <string>
#include <string_view>

#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>

#include "http/connection.h"
#include "http/message.h"

namespace baleen::http {

using RequestMessage = boost::beast::http::request<boost::beast::http::string_body>;
using ResponseMessage = boost::beast::http::response<boost::beast::http::string_body>;
using EventsMessage = boost::beast::http::response<boost::beast::http::empty_body>;

/// Takes the body over. None: the target is malformed.
std::optional<Request> request_of(RequestMessage& message, const std::string& peer);

/// The answer to a request whose body would have to be decoded first.
std::optional<Response> coding_refusal(const Request& request, const ConnectionHost& host);

/// The answer to a request that has no handler: 404, or 405 with the methods that have one.
Response routing_refusal(const Request& request,
                         const Router::Match& match,
                         const ConnectionHost& host);

/// What `config` allows pages of other origins, for the answers to `request`.
Headers cross_origin_headers(const Request& request, const ServerConfig& config);

/// The answer to a browser that asks before it sends a request across origins.
std::optional<Response> preflight_answer(const Request& request, const ServerConfig& config);

ResponseMessage message_of(Response response, const Headers& extra, unsigned version);
EventsMessage events_message_of(const Headers& headers, const Headers& extra, unsigned version);

}  // namespace baleen::http
