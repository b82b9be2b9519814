#pragma once
// Shows on stderr how far a file is read or written: bytes, speed and time left; a line that renews
// itself on a terminal, else only the last line. Calls may come from several threads.
//
//   Progress progress("models/abacus", "loaded", true);
//   read(..., [&](uint64_t done, uint64_t total) { progress.update(done, total); });
//   progress.finish();

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace baleen::apps {

class Progress {
 public:
  /// The summary reads "`name`: `done_word` 1.2 GB in ...".
  Progress(std::string name, std::string done_word, bool visible);

  void update(uint64_t done_bytes, uint64_t total_bytes);
  /// Prints the summary. Once.
  void finish();

  double seconds() const;  // since construction, until finish()
  uint64_t total_bytes() const { return total_bytes_; }

 private:
  using Clock = std::chrono::steady_clock;

  std::string name_;
  std::string done_word_;
  bool visible_;
  bool terminal_;
  std::mutex mutex_;  // guards what follows
  Clock::time_point begin_ = Clock::now();
  Clock::time_point shown_ = begin_;
  Clock::time_point end_;
  uint64_t total_bytes_ = 0;
  bool finished_ = false;
};

}  // namespace baleen::apps
