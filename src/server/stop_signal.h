#pragma once
// Waits for SIGINT or SIGTERM without a handler: the signals are blocked in every thread and taken
// by one of its own. Made by the program before anything else starts a thread. A signal that comes
// before wait() ends the program at once (exit code 128 + signal), and so does a second one.
//
//   StopSignal stop;
//   ... load, start ...
//   const char* name = stop.wait();   // "SIGTERM"

#include <condition_variable>
#include <csignal>
#include <mutex>
#include <stop_token>
#include <thread>

namespace baleen::server {

class StopSignal {
 public:
  /// Blocks the signals in this thread and in those it starts from now on. SIGPIPE is ignored.
  StopSignal();
  /// Blocks until a signal comes; returns its name. Once.
  const char* wait();

 private:
  void watch(const std::stop_token& stop);

  sigset_t signals_{};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool waiting_ = false;
  int signal_ = 0;
  std::jthread thread_;
};

}  // namespace baleen::server
