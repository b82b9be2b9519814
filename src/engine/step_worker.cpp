#include "engine/step_worker.h"

#include <utility>

#include <pthread.h>

#include "base/check.h"

namespace baleen::engine {

StepWorker::StepWorker(Executor& executor) : executor_(executor), thread_([this] { run(); }) {}

StepWorker::~StepWorker() {
  {
    std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void StepWorker::submit(const BatchPlan& plan, MaskProvider masks) {
  {
    std::lock_guard lock(mutex_);
    BALEEN_CHECK(num_in_flight() < kDepth, "{} steps are in flight", num_in_flight());
    orders_[static_cast<size_t>(num_submitted_ % kDepth)] = {&plan, std::move(masks)};
    ++num_submitted_;
  }
  changed_.notify_all();
}

StepResult& StepWorker::wait() {
  std::unique_lock lock(mutex_);
  BALEEN_CHECK(num_in_flight() > 0, "no step is in flight");
  changed_.wait(lock, [&] { return num_done_ > num_taken_ || failure_ != nullptr; });
  return take();
}

StepResult* StepWorker::wait_for(std::chrono::nanoseconds patience) {
  std::unique_lock lock(mutex_);
  BALEEN_CHECK(num_in_flight() > 0, "no step is in flight");
  return changed_.wait_for(
             lock, patience, [&] { return num_done_ > num_taken_ || failure_ != nullptr; })
             ? &take()
             : nullptr;
}

/// With the mutex held, when the oldest step is done or failed.
StepResult& StepWorker::take() {
  if (num_done_ == num_taken_) {
    std::rethrow_exception(failure_);
  }
  // Its place is written again by the step after the next, which is not submitted yet.
  return results_[static_cast<size_t>(num_taken_++ % kDepth)];
}

void StepWorker::run() {
  pthread_setname_np(pthread_self(), "steps");
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stops_ || num_submitted_ > num_done_; });
    if (stops_) {
      return;
    }
    const auto place = static_cast<size_t>(num_done_ % kDepth);
    const Order& order = orders_[place];
    lock.unlock();
    StepResult result;
    std::exception_ptr failure;
    try {
      const Ticket ticket = executor_.submit(*order.plan, order.masks);
      result = executor_.wait(ticket);
    } catch (...) {
      failure = std::current_exception();  // thrown again by wait(), on the engine's thread
    }
    lock.lock();
    if (failure != nullptr) {
      failure_ = std::move(failure);
      changed_.notify_all();
      return;
    }
    results_[place] = std::move(result);
    ++num_done_;
    changed_.notify_all();
  }
}

}  // namespace baleen::engine
