#pragma once
// The connection behind connection.h: a state machine over one socket. Everything but the public
// functions runs on the socket's strand. Reading is in tcp_connection_read.cpp, answering and
// ending in tcp_connection_write.cpp. Inside the room only.
//
//   auto connection = std::make_shared<TcpConnection>(std::move(socket), peer, host);

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>

#include "http/connection.h"
#include "http/exchange.h"
#include "http/request_intake.h"

namespace baleen::http {

class TcpConnection final : public Connection,
                            public Wire,
                            public std::enable_shared_from_this<TcpConnection> {
 public:
  TcpConnection(boost::asio::ip::tcp::socket socket, std::string peer, ConnectionHost& host);

  void start() override;
  void refuse(int status, std::string message) override;
  void drain() override;
  void cut() override;
  void wake() override;

 private:
  using Clock = std::chrono::steady_clock;
  enum class Phase { kIdle, kHeader, kBody, kAnswering, kFailing, kLingering, kClosed };

  template <class Function>
  void on_strand(Function function) {
    boost::asio::post(socket_.get_executor(),
                      [self = shared_from_this(), function = std::move(function)] {
                        if (self->phase_ != Phase::kClosed) {
                          function(*self);
                        }
                      });
  }

  // ---- Time-outs: one timer, whose meaning is the phase it was armed in.
  void arm(Clock::duration duration);
  void disarm();
  void on_timeout();

  // ---- Readability: one outstanding wait, used to begin the next request and, while an answer is
  // being made, to notice that the client left. Bytes the client pipelines end the watch.
  void watch();
  void on_readable(boost::system::error_code error);
  /// The client sends nothing more. It may have left, or have shut its sending half and be waiting
  /// for the answer: the two differ in what happens to the next bytes it is sent. A client that
  /// left answers them with a reset, so it is sent something that the waiting one skips.
  void on_peer_ended();
  bool last_request() const;

  // ---- Reading a request.
  void next_request();
  void read_header();
  void on_header(boost::system::error_code error);
  void read_body();
  /// True when `error` ended the request.
  bool refuse_read_error(boost::system::error_code error);

  // ---- Answering.
  void handle();

  /// The path of the request as it was sent; empty before its header is there.
  std::string_view target_path() const;

  /// Writes what the exchange has, one write at a time.
  void pump();
  void write_response(Response response);
  void write_events_header(const Headers& extra);
  /// Writes pending_.bytes, then the end of the stream if it is complete.
  void write_events();
  void take_more();
  void answer_complete();
  void report(int status);

  // ---- Ending.
  /// Answers an error that no handler made, then closes.
  void fail(int status, const std::string& message);
  /// Lets the client read the answer before the connection goes: closing with unread input would
  /// reset the connection under it.
  void linger();
  void read_and_drop();
  void close();

  ConnectionHost& host_;
  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer timer_;
  uint64_t timer_generation_ = 0;
  std::string peer_;
  Phase phase_ = Phase::kIdle;
  bool timed_out_ = false;
  bool watching_ = false;
  bool has_next_ = false;  // pipelined bytes wait in the socket
  bool keep_alive_ = true;
  bool draining_ = false;
  bool chunked_ = true;
  bool head_only_ = false;
  bool writing_ = false;
  bool events_begun_ = false;  // the header of this answer's stream is being or was written
  bool peer_ended_ = false;    // nothing more comes from the socket
  unsigned version_ = 11;
  int status_ = 0;
  int64_t dropped_bytes_ = 0;
  Clock::time_point started_ = Clock::now();
  Clock::time_point body_deadline_;
  std::string route_;
  Headers cross_origin_;  // of the answers to this request
  boost::beast::flat_buffer buffer_;
  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> parser_;
  std::shared_ptr<Exchange> exchange_;
  Exchange::Output pending_;
  std::optional<ResponseMessage> message_;
  std::optional<boost::beast::http::response_serializer<boost::beast::http::string_body>>
      response_serializer_;
  std::optional<EventsMessage> events_message_;
  std::optional<boost::beast::http::response_serializer<boost::beast::http::empty_body>>
      events_serializer_;
};

}  // namespace baleen::http
