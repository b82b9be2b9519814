#include <algorithm>
#include <cerrno>

#include <boost/asio/write.hpp>
#include <sys/socket.h>

#include "base/log.h"
#include "http/tcp_connection.h"

namespace baleen::http {

namespace net = boost::asio;
namespace bh = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
constexpr std::string_view kCommentEvent = ":\n\n";  // what every reader of an event stream skips

}  // namespace

TcpConnection::TcpConnection(net::ip::tcp::socket socket, std::string peer, ConnectionHost& host)
    : host_(host),
      socket_(std::move(socket)),
      timer_(socket_.get_executor()),
      peer_(std::move(peer)) {
  error_code ignored;
  socket_.set_option(net::ip::tcp::no_delay(true), ignored);
}

void TcpConnection::start() {
  on_strand([](TcpConnection& self) { self.next_request(); });
}

void TcpConnection::refuse(int status, std::string message) {
  on_strand(
      [status, message = std::move(message)](TcpConnection& self) { self.fail(status, message); });
}

void TcpConnection::drain() {
  on_strand([](TcpConnection& self) {
    self.keep_alive_ = false;
    self.draining_ = true;
    if (self.phase_ == Phase::kIdle) {
      self.close();
    }
  });
}

void TcpConnection::cut() {
  on_strand([](TcpConnection& self) { self.close(); });
}

void TcpConnection::wake() {
  on_strand([](TcpConnection& self) { self.pump(); });
}

void TcpConnection::arm(Clock::duration duration) {
  timed_out_ = false;
  timer_.expires_after(duration);
  timer_.async_wait([self = shared_from_this(), armed = ++timer_generation_](error_code error) {
    if (!error && armed == self->timer_generation_) {
      self->on_timeout();
    }
  });
}

void TcpConnection::disarm() {
  ++timer_generation_;
  timer_.cancel();
}

void TcpConnection::on_timeout() {
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

void TcpConnection::watch() {
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

void TcpConnection::on_readable(error_code error) {
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

void TcpConnection::on_peer_ended() {
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

bool TcpConnection::last_request() const {
  return !keep_alive_ || draining_ || host_.draining() || (peer_ended_ && buffer_.size() == 0);
}

void TcpConnection::next_request() {
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

void TcpConnection::read_header() {
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

void TcpConnection::on_header(error_code error) {
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

void TcpConnection::read_body() {
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

bool TcpConnection::refuse_read_error(error_code error) {
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

std::string_view TcpConnection::target_path() const {
  if (!parser_ || !parser_->is_header_done()) {
    return {};
  }
  const auto target = parser_->get().target();
  return std::string_view(target.data(), target.size()).substr(0, target.find('?'));
}

}  // namespace baleen::http
