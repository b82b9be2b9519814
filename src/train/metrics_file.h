#pragma once
// metrics.jsonl: one object per step. A resumed run first cuts away the lines of steps it will make
// again, so the file reads as that of an uninterrupted run. Owned by the run; one thread.
//
//   MetricsFile file("out/metrics.jsonl", next_step);
//   file.write(metrics_line(report, figures));

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace baleen::train {

/// Values by name, in the order they are written. Numbers that are not finite become null.
using Metrics = std::vector<std::pair<std::string, double>>;

std::string metrics_json(const Metrics& metrics);

class MetricsFile {
 public:
  /// Keeps the lines whose "train/step" is below `next_step` (all of an uncut run). Throws
  /// SystemError.
  /// `curve` is the value that kept() tells of.
  MetricsFile(std::filesystem::path path,
              int64_t next_step,
              const std::string& curve = "train/loss");
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;
  ~MetricsFile();

  /// Appends one line, as a whole. Throws SystemError when the disk refuses.
  void write(const Metrics& metrics);

  /// The lines that were kept, for the curve.
  struct Point {
    int64_t step = 0;
    double value = 0.0;
  };
  const std::vector<Point>& kept() const { return kept_; }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::vector<Point> kept_;
};

}  // namespace baleen::train
