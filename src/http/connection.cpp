#include "http/connection.h"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <optional>
#include <string_view>
#include <utility>

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <sys/socket.h>

#include "base/log.h"
#include "http/exchange.h"
#include "http/request_intake.h"
#include "http/response_writer.h"

namespace baleen::http {
namespace {

namespace net = boost::asio;
namespace bh = boost::beast::http;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kLingerTimeout{2};
constexpr int64_t kMaxLingerBytes =
    256LL << 20;  // of a body nobody wants, read so that the answer arrives
constexpr int kStatusClientLeft = 499;
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
constexpr std::string_view kCommentEvent = ":\n\n";  // what every reader of an event stream skips

class TcpConnection final : public Connection,
                            public Wire,
                            public std::enable_shared_from_this<TcpConnection> {
 public:
  TcpConnection(net::ip::tcp::socket socket, std::string peer, ConnectionHost& host)
      : host_(host),
        socket_(std::move(socket)),
        timer_(socket_.get_executor()),
        peer_(std::move(peer)) {
    error_code ignored;
    socket_.set_option(net::ip::tcp::no_delay(true), ignored);
  }

  void start() override {
    on_strand([](TcpConnection& self) { self.next_request(); });
  }
  void refuse(int status, std::string message) override {
    on_strand([status, message = std::move(message)](TcpConnection& self) {
      self.fail(status, message);
    });
  }
  void drain() override {
    on_strand([](TcpConnection& self) {
      self.keep_alive_ = false;
      self.draining_ = true;
      if (self.phase_ == Phase::kIdle) {
        self.close();
      }
    });
  }
  void cut() override {
    on_strand([](TcpConnection& self) { self.close(); });
  }
  void wake() override {
    on_strand([](TcpConnection& self) { self.pump(); });
  }

 private:
  enum class Phase { kIdle, kHeader, kBody, kAnswering, kFailing, kLingering, kClosed };

  template <class Function>
  void on_strand(Function function) {
    net::post(socket_.get_executor(), [self = shared_from_this(), function = std::move(function)] {
      if (self->phase_ != Phase::kClosed) {
        function(*self);
      }
    });
  }

  // ---- Time-outs: one timer, whose meaning is the phase it was armed in.
  void arm(Clock::duration duration) {
    timed_out_ = false;
    timer_.expires_after(duration);
    timer_.async_wait([self = shared_from_this(), armed = ++timer_generation_](error_code error) {
      if (!error && armed == self->timer_generation_) {
        self->on_timeout();
      }
    });
  }
  void disarm() {
    ++timer_generation_;
    timer_.cancel();
  }
  void on_timeout() {
    switch (phase_) {
      case Phase::kHeader:
      case Phase::kBody: {
        timed_out_ = true;  // the read ends with "aborted" and answers 408
        error_code ignored;
        socket_.cancel(ignored);
        break;
      }
      case Phase::kAnswering:
        log::info("http", "client_stalled peer={} route={}", peer_, route_);
        close();
        break;
      case Phase::kIdle:
      case Phase::kFailing:
      case Phase::kLingering:
        close();
        break;
      case Phase::kClosed:
        break;
    }
  }

  // ---- Readability: one outstanding wait, used to begin the next request and, while an answer is
  // being made, to notice that the client left. Bytes the client pipelines end the watch.
  void watch() {
    if (watching_) {
      return;
    }
    watching_ = true;
    socket_.async_wait(net::ip::tcp::socket::wait_read,
                       [self = shared_from_this()](error_code error) {
                         self->watching_ = false;
                         self->on_readable(error);
                       });
  }
  void on_readable(error_code error) {
    if (phase_ == Phase::kIdle) {
      error ? close() : read_header();
    } else if (phase_ == Phase::kAnswering) {
      char byte = 0;
      const ssize_t got = ::recv(socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
      if (got > 0) {
        has_next_ = true;
      } else if (got < 0 && (errno == EAGAIN || errno == EINTR) && !error) {
        watch();
      } else if (got == 0) {
        on_peer_ended();
      } else {
        close();
      }
    }
  }
  /// The client sends nothing more. It may have left, or have shut its sending half and be waiting
  /// for the answer: the two differ in what happens to the next bytes it is sent. A client that
  /// left answers them with a reset, so it is sent something that the waiting one skips.
  void on_peer_ended() {
    if (!std::exchange(peer_ended_, true)) {
      socket_.async_wait(net::ip::tcp::socket::wait_error, [self = shared_from_this()](error_code) {
        if (self->phase_ == Phase::kAnswering) {
          self->close();
        }
      });
    }
    if (writing_) {
      return;
    }
    if (events_begun_) {
      pending_.bytes = kCommentEvent;
      write_events();
    } else if (version_ >= 11) {
      writing_ = true;
      arm(host_.config().write_timeout);
      net::async_write(
          socket_, net::buffer(kContinue), [self = shared_from_this()](error_code error, size_t) {
            self->writing_ = false;
            self->disarm();
            error ? self->close() : self->pump();
          });
    }
  }
  bool last_request() const {
    return !keep_alive_ || draining_ || host_.draining() || (peer_ended_ && buffer_.size() == 0);
  }

  // ---- Reading a request.
  void next_request() {
    if (last_request()) {
      // With nothing unread, closing sends the rest of the answer and then the end.
      buffer_.size() > 0 || has_next_ ? linger() : close();
      return;
    }
    phase_ = Phase::kIdle;
    parser_.reset();
    if (buffer_.size() > 0 || has_next_) {
      read_header();
      return;
    }
    arm(host_.config().idle_timeout);
    watch();
  }
  void read_header() {
    phase_ = Phase::kHeader;
    has_next_ = false;
    started_ = Clock::now();
    route_.clear();
    cross_origin_ = {};
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(host_.config().max_header_bytes));
    parser_->body_limit(static_cast<uint64_t>(host_.config().max_body_bytes));
    arm(host_.config().header_timeout);
    bh::async_read_header(
        socket_, buffer_, *parser_, [self = shared_from_this()](error_code error, size_t) {
          self->on_header(error);
        });
  }
  void on_header(error_code error) {
    if (phase_ != Phase::kHeader || refuse_read_error(error)) {
      return;
    }
    phase_ = Phase::kBody;
    body_deadline_ = Clock::now() + host_.config().body_deadline;
    const auto expect = parser_->get()[bh::field::expect];
    if (!parser_->is_done() && boost::beast::iequals(expect, "100-continue")) {
      net::async_write(socket_,
                       net::buffer(kContinue),
                       [self = shared_from_this()](error_code write_error, size_t) {
                         write_error ? self->close() : self->read_body();
                       });
      return;
    }
    read_body();
  }
  void read_body() {
    if (phase_ != Phase::kBody) {
      return;
    }
    if (parser_->is_done()) {
      disarm();
      handle();
      return;
    }
    arm(std::min<Clock::duration>(host_.config().body_timeout, body_deadline_ - Clock::now()));
    bh::async_read_some(
        socket_, buffer_, *parser_, [self = shared_from_this()](error_code error, size_t) {
          if (self->phase_ == Phase::kBody && !self->refuse_read_error(error)) {
            self->read_body();
          }
        });
  }
  /// True when `error` ended the request.
  bool refuse_read_error(error_code error) {
    if (!error) {
      return false;
    }
    if (timed_out_) {
      fail(408, "the request did not arrive in time");
    } else if (error == bh::error::end_of_stream || error == bh::error::partial_message) {
      close();
    } else if (error == bh::error::header_limit) {
      fail(431,
           "the request header is larger than " + std::to_string(host_.config().max_header_bytes) +
               " bytes");
    } else if (error == bh::error::body_limit) {
      fail(413,
           "the request body is larger than " + std::to_string(host_.config().max_body_bytes) +
               " bytes");
    } else if (error.category() == bh::make_error_code(bh::error::bad_method).category()) {
      fail(400, "malformed HTTP request: " + error.message());
    } else {
      close();
    }
    return true;
  }

  // ---- Answering.
  void handle() {
    phase_ = Phase::kAnswering;
    const auto& message = parser_->get();
    keep_alive_ = message.keep_alive();
    chunked_ = message.version() >= 11;
    version_ = message.version();
    head_only_ = message.method() == bh::verb::head;
    std::optional<Request> taken = request_of(parser_->get(), peer_);
    if (!taken) {
      fail(400, "malformed request target");
      return;
    }
    Request request = std::move(*taken);
    cross_origin_ = cross_origin_headers(request, host_.config());

    exchange_ =
        std::make_shared<Exchange>(shared_from_this(), host_.config().max_stream_queue_bytes);
    Router::Match match = host_.router().find(request.method, request.path);
    route_ = match.handler ? match.route : "other";
    if (host_.hooks().on_request) {
      host_.hooks().on_request(request.method, route_);
    }
    events_begun_ = false;
    watch();
    std::optional<Response> answer = preflight_answer(request, host_.config());
    if (!answer) {
      answer = coding_refusal(request, host_);
    }
    if (!answer && match.handler == nullptr) {
      answer = routing_refusal(request, match, host_);
    }
    if (answer) {
      exchange_->respond(std::move(*answer));
      return;
    }
    request.path_parameter = std::move(match.parameter);
    // The task owns the writer; a handler that throws lets go of it, which answers 500.
    host_.run([handler = match.handler,
               request = std::make_shared<Request>(std::move(request)),
               writer = std::make_shared<ResponseWriter>(exchange_)] {
      try {
        (*handler)(std::move(*request), std::move(*writer));
      } catch (const std::exception& error) {
        log::error("http", "handler_failed path={} error={}", request->path, error.what());
      }
    });
  }

  /// The path of the request as it was sent; empty before its header is there.
  std::string_view target_path() const {
    if (!parser_ || !parser_->is_header_done()) {
      return {};
    }
    const auto target = parser_->get().target();
    return std::string_view(target.data(), target.size()).substr(0, target.find('?'));
  }

  /// Writes what the exchange has, one write at a time.
  void pump() {
    if (phase_ != Phase::kAnswering || !exchange_) {
      return;
    }
    if (exchange_->broken()) {
      log::warn("http", "stream_broken_off peer={} route={}", peer_, route_);
      close();
      return;
    }
    if (writing_) {
      return;
    }
    Exchange::Output output = exchange_->take();
    if (output.response) {
      write_response(output.response->status == Exchange::kUnanswered
                         ? host_.error_page(500, "internal error", target_path())
                         : std::move(*output.response));
    } else if (output.events_header) {
      pending_ = std::move(output);
      write_events_header(*pending_.events_header);
    } else {
      pending_ = std::move(output);
      write_events();
    }
  }
  void write_response(Response response) {
    status_ = response.status;
    message_.emplace(message_of(std::move(response), cross_origin_, version_));
    message_->keep_alive(!last_request());
    keep_alive_ = message_->keep_alive();
    message_->prepare_payload();
    writing_ = true;
    arm(host_.config().write_timeout);
    auto done = [self = shared_from_this()](error_code error, size_t) {
      self->writing_ = false;
      error ? self->close() : self->answer_complete();
    };
    if (head_only_) {
      response_serializer_.emplace(*message_);
      bh::async_write_header(socket_, *response_serializer_, std::move(done));
    } else {
      bh::async_write(socket_, *message_, std::move(done));
    }
  }
  void write_events_header(const Headers& extra) {
    status_ = 200;
    events_begun_ = true;
    events_message_.emplace(events_message_of(extra, cross_origin_, version_));
    keep_alive_ = keep_alive_ && chunked_;
    events_message_->keep_alive(keep_alive_);
    if (chunked_) {
      events_message_->chunked(true);
    }
    events_serializer_.emplace(*events_message_);
    writing_ = true;
    arm(host_.config().write_timeout);
    bh::async_write_header(
        socket_, *events_serializer_, [self = shared_from_this()](error_code error, size_t) {
          self->writing_ = false;
          error ? self->close() : self->write_events();
        });
  }
  /// Writes pending_.bytes, then the end of the stream if it is complete.
  void write_events() {
    if (phase_ != Phase::kAnswering) {
      return;
    }
    auto done = [self = shared_from_this()](error_code error, size_t) {
      self->writing_ = false;
      if (error) {
        self->close();
        return;
      }
      self->pending_.bytes.clear();
      self->write_events();
    };
    if (!pending_.bytes.empty()) {
      writing_ = true;
      arm(host_.config().write_timeout);
      if (chunked_) {
        net::async_write(socket_, bh::make_chunk(net::buffer(pending_.bytes)), std::move(done));
      } else {
        net::async_write(socket_, net::buffer(pending_.bytes), std::move(done));
      }
    } else if (pending_.end && chunked_) {
      pending_.end = false;
      writing_ = true;
      arm(host_.config().write_timeout);
      net::async_write(
          socket_, bh::make_chunk_last(), [self = shared_from_this()](error_code error, size_t) {
            self->writing_ = false;
            error ? self->close() : self->answer_complete();
          });
    } else if (pending_.end) {
      answer_complete();
    } else {
      disarm();
      take_more();
    }
  }
  void take_more() {
    pending_ = exchange_->take();
    if (!pending_.bytes.empty() || pending_.end) {
      write_events();
    }
  }
  void answer_complete() {
    if (phase_ == Phase::kFailing) {
      linger();
      return;
    }
    if (phase_ != Phase::kAnswering) {
      return;
    }
    disarm();
    exchange_->finished();
    exchange_.reset();
    pending_ = {};
    report(status_);
    next_request();
  }
  void report(int status) {
    if (host_.hooks().on_response) {
      host_.hooks().on_response(route_, status, Clock::now() - started_);
    }
  }

  // ---- Ending.
  /// Answers an error that no handler made, then closes.
  void fail(int status, const std::string& message) {
    phase_ = Phase::kFailing;
    keep_alive_ = false;
    head_only_ = false;
    if (host_.hooks().on_request) {
      host_.hooks().on_request("other", "other");
    }
    if (route_.empty()) {
      route_ = "other";
    }
    report(status);
    write_response(host_.error_page(status, message, target_path()));
  }
  /// Lets the client read the answer before the connection goes: closing with unread input would
  /// reset the connection under it.
  void linger() {
    phase_ = Phase::kLingering;
    error_code ignored;
    socket_.shutdown(net::ip::tcp::socket::shutdown_send, ignored);
    arm(kLingerTimeout);
    buffer_.consume(buffer_.size());
    read_and_drop();
  }
  void read_and_drop() {
    socket_.async_read_some(buffer_.prepare(size_t{64} << 10),
                            [self = shared_from_this()](error_code error, size_t got) {
                              if (self->phase_ != Phase::kLingering) {
                                return;
                              }
                              self->dropped_bytes_ += static_cast<int64_t>(got);
                              if (error || self->dropped_bytes_ > kMaxLingerBytes) {
                                self->close();
                              } else {
                                self->read_and_drop();
                              }
                            });
  }
  void close() {
    if (phase_ == Phase::kClosed) {
      return;
    }
    const bool was_answering = phase_ == Phase::kAnswering;
    phase_ = Phase::kClosed;
    disarm();
    error_code ignored;
    socket_.close(ignored);
    if (exchange_) {
      exchange_->disconnected();
      exchange_.reset();
    }
    if (was_answering) {
      report(kStatusClientLeft);
    }
    host_.closed(*this);
  }

  ConnectionHost& host_;
  net::ip::tcp::socket socket_;
  net::steady_timer timer_;
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
  std::optional<bh::request_parser<bh::string_body>> parser_;
  std::shared_ptr<Exchange> exchange_;
  Exchange::Output pending_;
  std::optional<ResponseMessage> message_;
  std::optional<bh::response_serializer<bh::string_body>> response_serializer_;
  std::optional<EventsMessage> events_message_;
  std::optional<bh::response_serializer<bh::empty_body>> events_serializer_;
};

}  // namespace

Response ConnectionHost::error_page(int status,
                                    const std::string& message,
                                    std::string_view path) const {
  return hooks().error_page ? hooks().error_page(status, message, path)
                            : Response::text(status, message + "\n");
}

std::shared_ptr<Connection> make_connection(net::ip::tcp::socket socket,
                                            std::string peer,
                                            ConnectionHost& host) {
  return std::make_shared<TcpConnection>(std::move(socket), std::move(peer), host);
}

}  // namespace baleen::http
