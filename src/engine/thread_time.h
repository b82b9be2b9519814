#pragma once
// Processor time of the calling thread, for figures of what a part of the work costs.
//
//   ThreadTime watch;  watch.start(); ... watch.pause(); ...  double s = watch.seconds();

#include <cstdint>
#include <ctime>

namespace baleen::engine {

/// Sums up the stretches between start() and pause(), both on one thread.
class ThreadTime {
 public:
  void start() { begin_ns_ = now_ns(); }
  void pause() { total_ns_ += now_ns() - begin_ns_; }
  double seconds() const { return static_cast<double>(total_ns_) * 1e-9; }

 private:
  static int64_t now_ns() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  }
  int64_t begin_ns_ = 0;
  int64_t total_ns_ = 0;
};

}  // namespace baleen::engine
