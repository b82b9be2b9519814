#pragma once
// TLS in front of plain connections: each accepted socket is decrypted here and handed on as one
// end of a local socket pair, so that a connection knows nothing of TLS. Inside the room only.
// Owned by the server; its relays live as long as their sockets, on the server's I/O threads.
//
//   TlsFront front(certificate_file, key_file);               // throws ConfigError
//   tcp::socket plain = front.terminate(std::move(accepted), io, handshake_timeout);

#include <chrono>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>

namespace baleen::http {

class TlsFront {
 public:
  /// PEM files: the certificate and the chain behind it, and its key. ConfigError names the file
  /// that cannot be used and why.
  TlsFront(const std::string& certificate_file, const std::string& key_file);

  /// The decrypted side of `accepted`, at once; the handshake goes on behind it and closes it when
  /// it fails or takes longer than `handshake_timeout`. Its end is the client's end. Throws
  /// SystemError when there are no descriptors left.
  boost::asio::ip::tcp::socket terminate(boost::asio::ip::tcp::socket accepted,
                                         boost::asio::io_context& io,
                                         std::chrono::milliseconds handshake_timeout);

 private:
  boost::asio::ssl::context context_;
};

}  // namespace baleen::http
