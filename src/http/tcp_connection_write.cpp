#include <exception>

#include <boost/asio/write.hpp>

#include "base/log.h"
#include "http/response_writer.h"
#include "http/tcp_connection.h"

namespace baleen::http {

namespace net = boost::asio;
namespace bh = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr std::chrono::seconds kLingerTimeout{2};
constexpr int64_t kMaxLingerBytes =
    256LL << 20;  // of a body nobody wants, read so that the answer arrives
constexpr int kStatusClientLeft = 499;

}  // namespace

void TcpConnection::handle() {
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

  exchange_ = std::make_shared<Exchange>(shared_from_this(), host_.config().max_stream_queue_bytes);
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

void TcpConnection::pump() {
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
  } else if (events_begun_) {
    pending_ = std::move(output);
    write_events();
  }
  // Else there is no answer yet; it wakes the connection when it comes.
}

void TcpConnection::write_response(Response response) {
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

void TcpConnection::write_events_header(const Headers& extra) {
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

void TcpConnection::write_events() {
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

void TcpConnection::take_more() {
  pending_ = exchange_->take_events();
  if (!pending_.bytes.empty() || pending_.end) {
    write_events();
  }
}

void TcpConnection::answer_complete() {
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

void TcpConnection::report(int status) {
  if (host_.hooks().on_response) {
    host_.hooks().on_response(route_, status, Clock::now() - started_);
  }
}

void TcpConnection::fail(int status, const std::string& message) {
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

void TcpConnection::linger() {
  phase_ = Phase::kLingering;
  error_code ignored;
  socket_.shutdown(net::ip::tcp::socket::shutdown_send, ignored);
  arm(kLingerTimeout);
  buffer_.consume(buffer_.size());
  read_and_drop();
}

void TcpConnection::read_and_drop() {
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

void TcpConnection::close() {
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

}  // namespace baleen::http
