#pragma once
// One TCP connection of the server, inside the room only. Lives on a strand of the server's I/O
// threads and is kept alive by its pending operations; the host outlives it.
//
//   auto connection = make_connection(std::move(socket), peer, host);
//   connection->start();

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <boost/asio/ip/tcp.hpp>

#include "http/server.h"

namespace baleen::http {

class Connection;

/// What a connection needs of its server.
class ConnectionHost {
 public:
  virtual ~ConnectionHost() = default;
  virtual const ServerConfig& config() const = 0;
  virtual const Router& router() const = 0;
  virtual const ServerHooks& hooks() const = 0;
  virtual bool draining() const = 0;
  /// Runs `task` on a handler thread.
  virtual void run(std::function<void()> task) = 0;
  /// Last call of a connection.
  virtual void closed(const Connection& connection) = 0;
  Response error_page(int status, const std::string& message, std::string_view path) const;
};

/// All functions may be called from any thread and take effect on the connection's strand.
class Connection {
 public:
  virtual ~Connection() = default;
  virtual void start() = 0;
  /// Answers every request with this error and closes.
  virtual void refuse(int status, std::string message) = 0;
  /// Closes when idle, else after the answer in progress.
  virtual void drain() = 0;
  /// Closes now; the handler in progress is told that its client left.
  virtual void cut() = 0;
};

/// `peer`: the client's address, for the log.
std::shared_ptr<Connection> make_connection(boost::asio::ip::tcp::socket socket,
                                            std::string peer,
                                            ConnectionHost& host);

}  // namespace baleen::http
