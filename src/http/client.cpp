#include "http/client.h"

#include <atomic>
#include <initializer_list>
#include <optional>
#include <utility>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <boost/url/parse.hpp>
#include <boost/url/url_view.hpp>

#include "base/error.h"

namespace baleen::http {

namespace net = boost::asio;
namespace bh = boost::beast::http;
using boost::system::error_code;

class Client::State {
 public:
  State(const std::string& url, ClientConfig config) : config_(std::move(config)) {
    const auto parsed = boost::urls::parse_uri(boost::urls::string_view(url.data(), url.size()));
    if (!parsed || parsed->host().empty()) {
      throw ConfigError("not a URL of the form http://host:port: " + url);
    }
    if (parsed->scheme() != "http") {
      throw ConfigError("only http:// URLs are supported, got " + url);
    }
    host_ = parsed->host_address();
    port_ = parsed->has_port() && !parsed->port().empty() ? std::string(parsed->port()) : "80";
    authority_ = std::string(parsed->encoded_host_and_port());
    base_ = parsed->path();
    while (base_.ends_with('/')) {
      base_.pop_back();
    }
    name_ = "http://" + authority_;
  }

  Result<Response> run(const ClientRequest& request,
                       const std::function<bool(std::string_view)>* on_piece) {
    // A kept connection may have been closed by the server meanwhile: then once more on a new one.
    // Not after a time-out, which says nothing about whether the request is being worked on.
    const bool was_open = stream_.has_value();
    bool nothing_arrived = true;
    timed_out_ = false;
    Result<Response> result = attempt(request, on_piece, nothing_arrived);
    if (!result.ok() && was_open && nothing_arrived && !timed_out_ && !cancelled_) {
      result = attempt(request, on_piece, nothing_arrived);
    }
    return result;
  }

  /// The connection is closed by the thread that waits: here it may be in the middle of a change.
  void cancel() {
    cancelled_ = true;
    net::post(io_, [this] {
      if (stream_) {
        stream_->close();
      }
    });
  }

 private:
  /// Runs one asynchronous operation of stream_ to its end. A cancel() before it is seen here, one
  /// behind that look is run among the operation's own handlers.
  template <class Start>
  error_code wait_for(std::chrono::milliseconds timeout, Start start) {
    error_code result;
    if (cancelled_) {
      return net::error::operation_aborted;
    }
    stream_->expires_after(timeout);
    start([&result](error_code error, auto&&...) { result = error; });
    io_.restart();
    io_.run();
    return result;
  }
  Status broken(const char* what, const error_code& error) {
    timed_out_ = error == boost::beast::error::timeout;
    stream_.reset();
    buffer_.consume(buffer_.size());
    if (cancelled_) {
      return {StatusCode::kCancelled, "the call to " + name_ + " was cancelled", {}, {}};
    }
    return {StatusCode::kUnavailable,
            std::string("cannot ") + what + " " + name_ + ": " + error.message(),
            {},
            {}};
  }

  Status connect() {
    if (stream_) {
      return {};
    }
    net::ip::tcp::resolver resolver(io_);
    error_code error;
    const auto found = resolver.resolve(host_, port_, error);
    stream_.emplace(io_);
    if (!error) {
      error = wait_for(config_.connect_timeout,
                       [&](auto done) { stream_->async_connect(found, std::move(done)); });
    }
    if (error) {
      return broken("connect to", error);
    }
    error_code ignored;
    stream_->socket().set_option(net::ip::tcp::no_delay(true), ignored);
    return {};
  }

  Result<Response> attempt(const ClientRequest& request,
                           const std::function<bool(std::string_view)>* on_piece,
                           bool& nothing_arrived) {
    if (Status status = connect(); !status.ok()) {
      return status;
    }
    bh::request<bh::string_body> message;
    message.version(11);
    message.method_string(request.method);
    message.target(base_ + request.target);
    message.set(bh::field::host, authority_);
    message.set(bh::field::user_agent, "baleen");
    for (const Headers* headers :
         std::initializer_list<const Headers*>{&config_.headers, &request.headers}) {
      for (const auto& [name, value] : headers->fields()) {
        message.set(name, value);
      }
    }
    message.body() = request.body;
    message.prepare_payload();
    if (const error_code error = wait_for(config_.read_timeout, [&](auto done) {
          bh::async_write(*stream_, message, std::move(done));
        })) {
      return broken("send to", error);
    }
    bh::response_parser<bh::string_body> parser;
    parser.body_limit(static_cast<uint64_t>(config_.max_response_bytes));
    if (on_piece != nullptr) {
      parser.body_limit(boost::none);
    }
    if (request.method == "HEAD") {
      parser.skip(true);
    }
    if (const error_code error = wait_for(config_.read_timeout, [&](auto done) {
          bh::async_read_header(*stream_, buffer_, parser, std::move(done));
        })) {
      return broken("read from", error);
    }
    nothing_arrived = false;
    Response response;
    response.status = parser.get().result_int();
    for (const auto& field : parser.get()) {
      response.headers.add(std::string(field.name_string()), std::string(field.value()));
    }
    const bool hand_out = on_piece != nullptr && response.status == 200;
    while (true) {
      std::string& body = parser.get().body();
      if (hand_out && !body.empty()) {
        const std::string piece = std::exchange(body, {});
        if (!(*on_piece)(piece)) {
          stream_.reset();
          buffer_.consume(buffer_.size());
          return response;
        }
      }
      if (parser.is_done()) {
        break;
      }
      if (const error_code error = wait_for(config_.read_timeout, [&](auto done) {
            bh::async_read_some(*stream_, buffer_, parser, std::move(done));
          })) {
        return broken("read from", error);
      }
    }
    response.body = std::move(parser.get().body());
    if (!parser.keep_alive()) {
      stream_.reset();
      buffer_.consume(buffer_.size());
    }
    return response;
  }

  ClientConfig config_;
  std::string host_;
  std::string port_;
  std::string authority_;
  std::string base_;
  std::string name_;
  net::io_context io_;
  std::optional<boost::beast::tcp_stream> stream_;
  boost::beast::flat_buffer buffer_;
  bool timed_out_ = false;
  std::atomic<bool> cancelled_{false};
};

Client::Client(const std::string& url, ClientConfig config)
    : state_(std::make_unique<State>(url, std::move(config))) {}
Client::~Client() = default;
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;

Result<Response> Client::send(const ClientRequest& request) {
  return state_->run(request, nullptr);
}

Result<Response> Client::get(const std::string& target) {
  return send({"GET", target, {}, {}});
}

Result<Response> Client::post(const std::string& target, std::string json_body) {
  return send({"POST", target, {{"Content-Type", "application/json"}}, std::move(json_body)});
}

Result<Response> Client::stream(const ClientRequest& request,
                                const std::function<bool(std::string_view)>& on_piece) {
  return state_->run(request, &on_piece);
}

void Client::cancel() {
  state_->cancel();
}

}  // namespace baleen::http
