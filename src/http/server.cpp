#include "http/server.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <fmt/format.h>
#include <pthread.h>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "http/connection.h"
#include "http/tls_front.h"

namespace baleen::http {

namespace net = boost::asio;
using boost::system::error_code;

void ServerConfig::validate() const {
  const auto need = [](bool good, const char* text) {
    if (!good) {
      throw ConfigError(text);
    }
  };
  need(!host.empty(), "host must not be empty");
  need(port >= 0 && port <= 65535, "port must be in 0 .. 65535");
  need(io_threads >= 1 && io_threads <= 64, "io_threads must be in 1 .. 64");
  need(handler_threads >= 1 && handler_threads <= 256, "handler_threads must be in 1 .. 256");
  need(max_connections >= 1, "max_connections must be at least 1");
  need(max_body_bytes >= 1, "max_body_bytes must be at least 1");
  need(max_header_bytes >= 512 && max_header_bytes <= (1 << 24),
       "max_header_bytes must be in 512 .. 16777216");
  need(max_stream_queue_bytes >= 1, "max_stream_queue_bytes must be at least 1");
  need(idle_timeout.count() > 0 && header_timeout.count() > 0 && body_timeout.count() > 0 &&
           body_deadline.count() > 0 && write_timeout.count() > 0,
       "time-outs must be positive");
  need(tls_certificate_file.empty() == tls_key_file.empty(),
       "TLS needs a certificate and its key: one of the two is missing");
}

class Server::State final : public ConnectionHost {
 public:
  State(ServerConfig config, Router router, ServerHooks hooks)
      : config_(std::move(config)),
        router_(std::move(router)),
        hooks_(std::move(hooks)),
        acceptor_(net::make_strand(io_)),
        retry_(acceptor_.get_executor()),
        io_work_(net::make_work_guard(io_)),
        handler_work_(net::make_work_guard(handlers_)) {
    config_.validate();
    if (!config_.tls_certificate_file.empty()) {
      tls_.emplace(config_.tls_certificate_file, config_.tls_key_file);
    }
    listen();
  }

  const ServerConfig& config() const override { return config_; }
  const Router& router() const override { return router_; }
  const ServerHooks& hooks() const override { return hooks_; }
  bool draining() const override { return draining_.load(); }
  void run(std::function<void()> task) override { net::post(handlers_, std::move(task)); }
  void closed(const Connection& connection) override {
    const std::lock_guard lock(mutex_);
    connections_.erase(&connection);
    changed_.notify_all();
  }

  void start() {
    BALEEN_CHECK(threads_.empty(), "the server is started once");
    net::post(acceptor_.get_executor(), [this] { accept(); });
    for (int i = 0; i < config_.io_threads; ++i) {
      threads_.emplace_back([this] {
        pthread_setname_np(pthread_self(), "http-io");
        run_context(io_);
      });
    }
    for (int i = 0; i < config_.handler_threads; ++i) {
      threads_.emplace_back([this] {
        pthread_setname_np(pthread_self(), "http-handler");
        run_context(handlers_);
      });
    }
    log::info("http",
              "listening url={} io_threads={} handler_threads={}",
              url(),
              config_.io_threads,
              config_.handler_threads);
  }

  void shutdown(std::chrono::milliseconds grace) {
    if (stopped_) {
      return;
    }
    stopped_ = true;
    draining_ = true;
    if (threads_.empty()) {
      return;
    }
    net::post(acceptor_.get_executor(), [this] {
      error_code ignored;
      acceptor_.close(ignored);
      retry_.cancel();
    });
    for_each_connection([](Connection& connection) { connection.drain(); });
    std::unique_lock lock(mutex_);
    const auto all_closed = [this] { return connections_.empty(); };
    if (!changed_.wait_for(lock, grace, all_closed)) {
      log::warn("http", "shutdown_cuts connections={}", connections_.size());
    }
    while (!connections_.empty()) {
      // Again and again: a connection accepted just before the listener closed may come late.
      lock.unlock();
      for_each_connection([](Connection& connection) { connection.cut(); });
      lock.lock();
      changed_.wait_for(lock, std::chrono::milliseconds(50), all_closed);
    }
    lock.unlock();
    io_work_.reset();
    handler_work_.reset();
    threads_.clear();  // joins: both contexts run out of work
    log::info("http", "stopped");
  }

  int port() const { return endpoint_.port(); }
  std::string url() const {
    const char* scheme = tls_ ? "https" : "http";
    return endpoint_.address().is_v6()
               ? fmt::format("{}://[{}]:{}", scheme, endpoint_.address().to_string(), port())
               : fmt::format("{}://{}:{}", scheme, endpoint_.address().to_string(), port());
  }
  int num_connections() const {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(connections_.size());
  }

 private:
  static void run_context(net::io_context& context) {
    try {
      context.run();
    } catch (const std::exception& error) {
      // A callback of the owner threw: a bug, and the state behind it is unknown.
      check_failed(__FILE__, __LINE__, "server threads do not throw", error.what());
    }
  }

  void listen() {
    const auto refuse = [this](const char* what, const error_code& error) {
      throw SystemError(
          fmt::format("cannot {} {}:{}: {}", what, config_.host, config_.port, error.message()));
    };
    error_code error;
    net::ip::tcp::resolver resolver(io_);
    const auto found = resolver.resolve(
        config_.host, std::to_string(config_.port), net::ip::tcp::resolver::passive, error);
    if (error || found.empty()) {
      refuse("resolve", error);
    }
    endpoint_ = found.begin()->endpoint();
    acceptor_.open(endpoint_.protocol(), error);
    if (error) {
      refuse("open a socket for", error);
    }
    acceptor_.set_option(net::socket_base::reuse_address(true), error);
    acceptor_.bind(endpoint_, error);
    if (error) {
      refuse("bind", error);
    }
    acceptor_.listen(net::socket_base::max_listen_connections, error);
    if (error) {
      refuse("listen on", error);
    }
    endpoint_ = acceptor_.local_endpoint();
  }

  void accept() {
    acceptor_.async_accept(net::make_strand(io_),
                           [this](error_code error, net::ip::tcp::socket socket) {
                             if (!acceptor_.is_open()) {
                               return;
                             }
                             if (error) {
                               retry_accept(error);
                               return;
                             }
                             admit(std::move(socket));
                             accept();
                           });
  }
  /// Out of descriptors or the like: try again shortly instead of spinning.
  void retry_accept(const error_code& error) {
    log::warn("http", "accept_failed error={}", error.message());
    retry_.expires_after(std::chrono::milliseconds(100));
    retry_.async_wait([this](error_code cancelled) {
      if (!cancelled && acceptor_.is_open()) {
        accept();
      }
    });
  }
  void admit(net::ip::tcp::socket socket) {
    error_code unknown;
    const auto peer = socket.remote_endpoint(unknown);
    if (tls_) {
      try {
        socket = tls_->terminate(std::move(socket), io_, config_.header_timeout);
      } catch (const SystemError& error) {
        log::warn("http", "accept_failed error={}", error.what());
        return;
      }
    }
    auto connection =
        make_connection(std::move(socket), unknown ? "" : peer.address().to_string(), *this);
    bool full = false;
    {
      const std::lock_guard lock(mutex_);
      full = static_cast<int>(connections_.size()) >= config_.max_connections;
      connections_.emplace(connection.get(), connection);
    }
    if (full) {
      connection->refuse(
          503, fmt::format("the server has {} connections, its limit", config_.max_connections));
    } else {
      connection->start();
    }
  }
  template <class Function>
  void for_each_connection(Function function) {
    std::vector<std::shared_ptr<Connection>> all;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [key, connection] : connections_) {
        if (auto alive = connection.lock()) {
          all.push_back(std::move(alive));
        }
      }
    }
    for (const auto& connection : all) {
      function(*connection);
    }
  }

  const ServerConfig config_;
  const Router router_;
  const ServerHooks hooks_;
  std::atomic<bool> draining_{false};
  bool stopped_ = false;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_map<const Connection*, std::weak_ptr<Connection>> connections_;
  net::io_context io_;
  net::io_context handlers_;
  std::optional<TlsFront> tls_;  // its relays end with io_'s work
  net::ip::tcp::endpoint endpoint_;
  net::ip::tcp::acceptor acceptor_;
  net::steady_timer retry_;
  net::executor_work_guard<net::io_context::executor_type> io_work_;
  net::executor_work_guard<net::io_context::executor_type> handler_work_;
  std::vector<std::jthread> threads_;
};

Server::Server(ServerConfig config, Router router, ServerHooks hooks)
    : state_(std::make_unique<State>(std::move(config), std::move(router), std::move(hooks))) {}

Server::~Server() {
  state_->shutdown(std::chrono::milliseconds(0));
}

void Server::start() {
  state_->start();
}

int Server::port() const {
  return state_->port();
}

std::string Server::url() const {
  return state_->url();
}

int Server::num_connections() const {
  return state_->num_connections();
}

void Server::shutdown(std::chrono::milliseconds grace) {
  state_->shutdown(grace);
}

}  // namespace baleen::http
