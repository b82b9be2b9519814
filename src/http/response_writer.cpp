#include "http/response_writer.h"

#include <string>
#include <utility>

#include "http/exchange.h"

namespace baleen::http {
namespace {

std::string event_text(std::string_view event, std::string_view data) {
  std::string text;
  text.reserve(data.size() + event.size() + 24);
  if (!event.empty()) {
    text += "event: ";
    text += event;
    text += '\n';
  }
  while (true) {
    const size_t line_end = data.find('\n');
    text += "data: ";
    text += data.substr(0, line_end);
    text += '\n';
    if (line_end == std::string_view::npos) {
      break;
    }
    data.remove_prefix(line_end + 1);
  }
  text += '\n';
  return text;
}

}  // namespace

EventStream::EventStream(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}

EventStream::~EventStream() {
  if (exchange_) {
    exchange_->break_off();
  }
}

EventStream& EventStream::operator=(EventStream&& other) noexcept {
  if (exchange_ && exchange_ != other.exchange_) {
    exchange_->break_off();
  }
  exchange_ = std::move(other.exchange_);
  return *this;
}

bool EventStream::send(std::string_view data) {
  return exchange_ && exchange_->append(event_text({}, data));
}

bool EventStream::send_named(std::string_view event, std::string_view data) {
  return exchange_ && exchange_->append(event_text(event, data));
}

void EventStream::close() {
  if (exchange_) {
    exchange_->end_events();
    exchange_.reset();
  }
}

ResponseWriter::ResponseWriter(std::shared_ptr<Exchange> exchange)
    : exchange_(std::move(exchange)) {}

ResponseWriter::~ResponseWriter() {
  if (exchange_ && !exchange_->answered()) {
    Response error_page;
    error_page.status = Exchange::kUnanswered;
    exchange_->respond(std::move(error_page));
  }
}

void ResponseWriter::on_disconnect(std::function<void()> callback) {
  exchange_->on_disconnect(std::move(callback));
}

void ResponseWriter::respond(Response response) {
  exchange_->respond(std::move(response));
}

EventStream ResponseWriter::start_events(Headers extra) && {
  exchange_->begin_events(std::move(extra));
  return EventStream(std::exchange(exchange_, nullptr));
}

}  // namespace baleen::http
