#include "http/tls_front.h"

#include <array>
#include <memory>
#include <utility>

#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>
#include <sys/socket.h>

#include "base/error.h"
#include "base/log.h"

namespace baleen::http {
namespace {

namespace net = boost::asio;
using boost::system::error_code;
using Tcp = net::ip::tcp;

constexpr std::chrono::seconds kGoodbyeTimeout{2};  // for the client's half of the TLS end
constexpr size_t kRelayBytes = size_t{16} << 10;    // a TLS record

/// Copies both ways between the encrypted socket and the plain one until both are at their end. All
/// its handlers run on the encrypted socket's strand; the pending ones keep it alive.
class TlsRelay : public std::enable_shared_from_this<TlsRelay> {
 public:
  TlsRelay(Tcp::socket encrypted, Tcp::socket plain, net::ssl::context& context)
      : encrypted_(std::move(encrypted), context),
        plain_(std::move(plain)),
        timer_(encrypted_.get_executor()) {}

  void start(std::chrono::milliseconds handshake_timeout) {
    close_after(handshake_timeout);
    encrypted_.async_handshake(
        net::ssl::stream_base::server, [self = shared_from_this()](error_code error) {
          self->timer_.cancel();
          if (error) {
            log::debug("http", "tls_handshake_failed error={}", error.message());
            self->close();
            return;
          }
          self->read_encrypted();
          self->read_plain();
        });
  }

 private:
  void close_after(std::chrono::milliseconds time) {
    timer_.expires_after(time);
    timer_.async_wait([self = shared_from_this()](error_code cancelled) {
      if (!cancelled) {
        self->close();
      }
    });
  }
  void close() {
    error_code ignored;
    timer_.cancel();
    plain_.close(ignored);
    encrypted_.lowest_layer().close(ignored);
  }

  void read_encrypted() {
    encrypted_.async_read_some(net::buffer(from_client_),
                               [self = shared_from_this()](error_code error, size_t got) {
                                 if (!error) {
                                   self->write_plain(got);
                                   return;
                                 }
                                 // The client's end, said or only shown: the answer in progress may
                                 // still go out to one that says it.
                                 const bool said = error == net::error::eof;
                                 if (said || error == net::ssl::error::stream_truncated) {
                                   error_code ignored;
                                   self->plain_.shutdown(Tcp::socket::shutdown_send, ignored);
                                 } else {
                                   self->close();
                                 }
                               });
  }
  void write_plain(size_t count) {
    net::async_write(plain_,
                     net::buffer(from_client_, count),
                     [self = shared_from_this()](error_code error, size_t) {
                       error ? self->close() : self->read_encrypted();
                     });
  }
  void read_plain() {
    plain_.async_read_some(net::buffer(to_client_),
                           [self = shared_from_this()](error_code error, size_t got) {
                             error ? self->say_goodbye() : self->write_encrypted(got);
                           });
  }
  void write_encrypted(size_t count) {
    net::async_write(encrypted_,
                     net::buffer(to_client_, count),
                     [self = shared_from_this()](error_code error, size_t) {
                       error ? self->close() : self->read_plain();
                     });
  }
  /// The server is done with this connection.
  void say_goodbye() {
    close_after(kGoodbyeTimeout);
    encrypted_.async_shutdown([self = shared_from_this()](error_code) { self->close(); });
  }

  net::ssl::stream<Tcp::socket> encrypted_;
  Tcp::socket plain_;
  net::steady_timer timer_;
  std::array<char, kRelayBytes> from_client_{};
  std::array<char, kRelayBytes> to_client_{};
};

}  // namespace

TlsFront::TlsFront(const std::string& certificate_file, const std::string& key_file)
    : context_(net::ssl::context::tls_server) {
  context_.set_options(net::ssl::context::default_workarounds | net::ssl::context::no_tlsv1 |
                       net::ssl::context::no_tlsv1_1);
  const auto check = [](const error_code& error, const char* what, const std::string& file) {
    if (error) {
      throw ConfigError(fmt::format("{} {}: {}", what, file, error.message()));
    }
  };
  error_code error;
  context_.use_certificate_chain_file(certificate_file, error);
  check(error, "cannot use the TLS certificate", certificate_file);
  context_.use_private_key_file(key_file, net::ssl::context::pem, error);
  check(error, "cannot use the TLS key", key_file);
}

Tcp::socket TlsFront::terminate(Tcp::socket accepted,
                                net::io_context& io,
                                std::chrono::milliseconds handshake_timeout) {
  std::array<int, 2> pair{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) != 0) {
    throw SystemError("no descriptors left for a TLS connection");
  }
  // To the reactor a stream is a stream; of the address only its absence is noticed.
  Tcp::socket inner(accepted.get_executor(), Tcp::v4(), pair[0]);
  Tcp::socket outer(net::make_strand(io), Tcp::v4(), pair[1]);
  error_code ignored;
  accepted.set_option(Tcp::no_delay(true), ignored);
  std::make_shared<TlsRelay>(std::move(accepted), std::move(inner), context_)
      ->start(handshake_timeout);
  return outer;
}

}  // namespace baleen::http
