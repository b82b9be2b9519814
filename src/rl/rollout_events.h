#pragma once
// What the engine says about the answers of a rollout, brought from its thread to the one that runs
// the loop. The queue outlives every sink that points at it.
//
//   auto events = std::make_shared<EventQueue>();
//   engine.submit(request, std::make_shared<QueueSink>(events, sample_index));
//   while (auto event = events->pop(timeout)) { ... }

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "engine/request.h"

namespace baleen::rl {

struct SampleEvent {
  int64_t index = 0;  // RolloutSample::index
  engine::OutputEvent event;
};

class EventQueue {
 public:
  void push(SampleEvent&& event) {
    {
      const std::lock_guard lock(mutex_);
      events_.push_back(std::move(event));
    }
    changed_.notify_one();
  }

  /// None after `timeout`.
  std::optional<SampleEvent> pop(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, timeout, [&] { return !events_.empty(); })) {
      return std::nullopt;
    }
    SampleEvent event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<SampleEvent> events_;
};

class QueueSink final : public engine::OutputSink {
 public:
  QueueSink(std::shared_ptr<EventQueue> queue, int64_t index)
      : queue_(std::move(queue)), index_(index) {}
  void on_event(engine::OutputEvent&& event) override { queue_->push({index_, std::move(event)}); }

 private:
  std::shared_ptr<EventQueue> queue_;
  int64_t index_;
};

}  // namespace baleen::rl
