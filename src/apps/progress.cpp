#include "apps/progress.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

namespace baleen::apps {
namespace {

constexpr std::chrono::milliseconds kInterval{100};

std::string readable_bytes(double bytes) {
  if (bytes >= 1e9) {
    return fmt::format("{:.2f} GB", bytes / 1e9);
  }
  return fmt::format("{:.1f} MB", bytes / 1e6);
}

}  // namespace

Progress::Progress(std::string name, std::string done_word, bool visible)
    : name_(std::move(name)),
      done_word_(std::move(done_word)),
      visible_(visible),
      terminal_(isatty(STDERR_FILENO) != 0) {}

void Progress::update(uint64_t done_bytes, uint64_t total_bytes) {
  std::lock_guard lock(mutex_);
  total_bytes_ = total_bytes;
  const Clock::time_point now = Clock::now();
  if (!visible_ || !terminal_ || done_bytes == 0 || now - shown_ < kInterval) {
    return;
  }
  shown_ = now;
  const double elapsed = std::chrono::duration<double>(now - begin_).count();
  const auto done = static_cast<double>(done_bytes);
  const auto total = static_cast<double>(total_bytes);
  const double left = elapsed * std::max(total - done, 0.0) / done;
  const std::string line = fmt::format("\r{}: {} of {} ({:.0f} %), {:.2f} GB/s, {:.0f} s left ",
                                       name_,
                                       readable_bytes(done),
                                       readable_bytes(total),
                                       100.0 * done / std::max(total, 1.0),
                                       done / 1e9 / elapsed,
                                       left);
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

void Progress::finish() {
  std::lock_guard lock(mutex_);
  finished_ = true;
  end_ = Clock::now();
  if (!visible_) {
    return;
  }
  const double elapsed = std::chrono::duration<double>(end_ - begin_).count();
  const std::string line = fmt::format("{}{}: {} {} in {:.2f} s ({:.2f} GB/s)\n",
                                       terminal_ ? "\r\033[K" : "",
                                       name_,
                                       done_word_,
                                       readable_bytes(static_cast<double>(total_bytes_)),
                                       elapsed,
                                       static_cast<double>(total_bytes_) / 1e9 / elapsed);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

double Progress::seconds() const {
  return std::chrono::duration<double>((finished_ ? end_ : Clock::now()) - begin_).count();
}

}  // namespace baleen::apps
