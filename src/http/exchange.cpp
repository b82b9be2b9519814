#include "http/exchange.h"

#include <utility>

#include "base/check.h"

namespace baleen::http {

Exchange::Exchange(std::shared_ptr<Wire> wire, int64_t max_queue_bytes)
    : wire_(std::move(wire)), max_queue_bytes_(max_queue_bytes) {}

void Exchange::wake_locked() {
  if (wire_) {
    wire_->wake();
  }
}

bool Exchange::respond(Response response) {
  const std::lock_guard lock(mutex_);
  BALEEN_CHECK(!answered_, "a request is answered once");
  answered_ = true;
  if (state_ != State::kOpen) {
    return false;
  }
  state_ = State::kResponse;
  response_ = std::move(response);
  wake_locked();
  return true;
}

bool Exchange::begin_events(Headers extra) {
  const std::lock_guard lock(mutex_);
  BALEEN_CHECK(!answered_, "a request is answered once");
  answered_ = true;
  if (state_ != State::kOpen) {
    return false;
  }
  state_ = State::kEvents;
  events_header_ = std::move(extra);
  wake_locked();
  return true;
}

bool Exchange::append(std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kEvents) {
    return false;
  }
  if (static_cast<int64_t>(queue_.size() + bytes.size()) > max_queue_bytes_) {
    state_ = State::kBroken;
    queue_.clear();
    wake_locked();
    return false;
  }
  const bool was_empty = queue_.empty();
  queue_ += bytes;
  if (was_empty) {
    wake_locked();
  }
  return true;
}

void Exchange::end_events() {
  const std::lock_guard lock(mutex_);
  if (state_ == State::kEvents) {
    state_ = State::kEnding;
    wake_locked();
  }
}

void Exchange::break_off() {
  const std::lock_guard lock(mutex_);
  if (state_ == State::kEvents || state_ == State::kOpen) {
    answered_ = true;
    state_ = State::kBroken;
    queue_.clear();
    wake_locked();
  }
}

void Exchange::on_disconnect(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kLeft) {
      std::swap(on_disconnect_, callback);
      return;  // the replaced callback, now in `callback`, dies after the lock
    }
  }
  callback();
}

bool Exchange::answered() const {
  const std::lock_guard lock(mutex_);
  return answered_;
}

Exchange::Output Exchange::take() {
  const std::lock_guard lock(mutex_);
  Output output;
  output.response = std::exchange(response_, std::nullopt);
  output.events_header = std::exchange(events_header_, std::nullopt);
  output.bytes = std::exchange(queue_, {});
  output.end = state_ == State::kEnding;
  return output;
}

Exchange::Output Exchange::take_events() {
  const std::lock_guard lock(mutex_);
  Output output;
  if (!response_ && !events_header_) {
    output.bytes = std::exchange(queue_, {});
    output.end = state_ == State::kEnding;
  }
  return output;
}

bool Exchange::broken() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::kBroken;
}

void Exchange::finished() {
  std::function<void()> dropped;  // may own objects whose destructors take locks
  std::shared_ptr<Wire> wire;
  const std::lock_guard lock(mutex_);
  if (state_ != State::kLeft) {
    state_ = State::kFinished;
    std::swap(dropped, on_disconnect_);
    std::swap(wire, wire_);
  }
}

void Exchange::disconnected() {
  std::function<void()> callback;
  std::shared_ptr<Wire> wire;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kFinished || state_ == State::kLeft) {
      return;
    }
    state_ = State::kLeft;
    queue_.clear();
    std::swap(callback, on_disconnect_);
    std::swap(wire, wire_);
  }
  if (callback) {
    callback();
  }
}

}  // namespace baleen::http
