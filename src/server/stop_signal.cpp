#include "server/stop_signal.h"

#include <cstdlib>
#include <ctime>

#include <pthread.h>

#include "base/check.h"

namespace baleen::server {

StopSignal::StopSignal() {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGINT);
  sigaddset(&signals_, SIGTERM);
  BALEEN_CHECK(pthread_sigmask(SIG_BLOCK, &signals_, nullptr) == 0, "signals cannot be blocked");
  std::signal(SIGPIPE, SIG_IGN);
  thread_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
}

const char* StopSignal::wait() {
  std::unique_lock lock(mutex_);
  waiting_ = true;
  changed_.wait(lock, [this] { return signal_ != 0; });
  return signal_ == SIGINT ? "SIGINT" : "SIGTERM";
}

void StopSignal::watch(const std::stop_token& stop) {
  const timespec tick{0, 100'000'000};  // how soon the thread sees that it is to end
  while (!stop.stop_requested()) {
    const int signal = sigtimedwait(&signals_, nullptr, &tick);
    if (signal <= 0) {
      continue;
    }
    const std::lock_guard lock(mutex_);
    if (!waiting_ || signal_ != 0) {
      std::_Exit(128 + signal);
    }
    signal_ = signal;
    changed_.notify_all();
  }
}

}  // namespace baleen::server
