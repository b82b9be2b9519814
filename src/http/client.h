#pragma once
// A small blocking HTTP/1.1 client that can hand out a body while it arrives. One object is used by
// one thread, cancel() by any; it keeps its connection open between requests.
//
//   http::Client client("http://127.0.0.1:30000", {});
//   Result<Response> answer = client.post("/v1/completions", body);
//   client.stream(request, [&](std::string_view piece) { reader.push(piece, f); return true; });

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "http/message.h"

namespace baleen::http {

struct ClientConfig {
  std::chrono::milliseconds connect_timeout{5'000};
  std::chrono::milliseconds read_timeout{600'000};  // between two arriving pieces
  int64_t max_response_bytes = 1LL << 30;           // of a body that is collected
  Headers headers;                                  // sent with every request
};

struct ClientRequest {
  std::string method = "GET";
  std::string target = "/";  // path and query, percent-encoded
  Headers headers;
  std::string body;
};

class Client {
 public:
  /// `url` is http://host[:port][/base]. Throws ConfigError for anything else; https:// is not
  /// supported.
  Client(const std::string& url, ClientConfig config);
  ~Client();
  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;

  /// Fails with kUnavailable when the server cannot be reached or breaks off, naming the reason,
  /// and with kCancelled after cancel().
  Result<Response> send(const ClientRequest& request);
  Result<Response> get(const std::string& target);
  Result<Response> post(const std::string& target, std::string json_body);

  /// Calls `on_piece` with the body as it arrives if the status is 200; other bodies are collected
  /// into the response. A false from `on_piece` closes the connection and ends the call.
  Result<Response> stream(const ClientRequest& request,
                          const std::function<bool(std::string_view)>& on_piece);

  /// Breaks off the call that waits, by closing its connection; it and all later ones fail with
  /// kCancelled. Any thread, while the object lives. Only a name's look-up is waited for.
  void cancel();

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace baleen::http
