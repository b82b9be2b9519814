#pragma once
// HTTP/1.1 server: keep-alive, body and header limits, time-outs, server-sent events, prompt notice
// of clients that leave, graceful shutdown. Knows no API. One owner; start() and shutdown() are
// called from the owner's thread, handlers run on the server's handler threads.
//
//   http::Server server(config, std::move(router), {});   // binds, throws SystemError
//   server.start();
//   server.shutdown(std::chrono::seconds(5));
//
// With a certificate it speaks TLS alone (tls_front.h).

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "http/message.h"

namespace baleen::http {

struct ServerConfig {
  std::string host = "127.0.0.1";
  int port = 30000;         // 0: the system picks one, see Server::port()
  int io_threads = 1;       // sockets
  int handler_threads = 2;  // handlers; their queue is bounded by max_connections
  int max_connections = 1024;
  int64_t max_body_bytes = 64LL << 20;
  int64_t max_header_bytes = 32LL << 10;
  int64_t max_stream_queue_bytes = 8LL << 20;  // unsent events of one slow client
  std::string tls_certificate_file;            // PEM, with its chain; empty: no TLS
  std::string tls_key_file;                    // PEM
  // Origins whose pages may call, such as https://example.org, or * for all; empty: none.
  std::vector<std::string> cors_origins;
  std::chrono::milliseconds idle_timeout{75'000};    // between requests of a connection
  std::chrono::milliseconds header_timeout{10'000};  // from its first byte to the header's end
  std::chrono::milliseconds body_timeout{30'000};    // between two arriving pieces of a body
  std::chrono::milliseconds body_deadline{300'000};  // from the header's end to the body's
  std::chrono::milliseconds write_timeout{60'000};   // without progress of one write

  void validate() const;  // throws ConfigError
};

/// What the owner wants to shape or to know. All may be empty; called from server threads.
struct ServerHooks {
  /// Body of an error the server itself answers: 400, 404, 405, 408, 413, 415, 431, 500, 501, 503.
  /// `path`: of the request, empty where its header did not arrive.
  std::function<Response(int status, const std::string& message, std::string_view path)> error_page;
  std::function<void(const std::string& method, const std::string& route)> on_request;
  /// `status` 499: the client left before the answer was complete.
  std::function<void(const std::string& route, int status, std::chrono::nanoseconds took)>
      on_response;
};

class Server {
 public:
  /// Binds and listens. Throws SystemError naming the address, ConfigError for bad settings and for
  /// certificates that cannot be used.
  Server(ServerConfig config, Router router, ServerHooks hooks);
  /// Calls shutdown(0) if the owner did not.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  void start();
  int port() const;
  std::string url() const;  // http://host:port, or https
  int num_connections() const;

  /// Stops accepting, closes idle connections, lets answers in progress finish until `grace` is
  /// over, then cuts the rest (their on_disconnect callbacks run). Returns when all is closed.
  void shutdown(std::chrono::milliseconds grace);

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace baleen::http
