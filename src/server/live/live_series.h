#pragma once
// Named curves that other parts of the program show in the live view, such as the reward of a
// training run over its rollouts. Owned by the server; any thread. Bounded: later names beyond the
// limit are refused, and of a long curve every second point is left out again and again, so that
// its shape stays.
//
//   api_server.live_series().add("reward", 12, 0.71);

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace baleen::server {

class LiveSeries {
 public:
  static constexpr size_t kMostNames = 64;
  static constexpr size_t kMostPoints = 1024;  // of a curve

  struct Point {
    double at = 0.0;  // such as the number of a step; grows
    double value = 0.0;
    friend bool operator==(const Point&, const Point&) = default;
  };

  /// False when there are too many names or a number is not finite; then nothing changes.
  bool add(const std::string& name, double at, double value);

  std::map<std::string, double> latest() const;
  /// Every curve, its first and its latest point among what is kept.
  std::map<std::string, std::vector<Point>> curves() const;
  /// Grows with every point: whoever saw it before knows whether there are new ones.
  int64_t num_added() const;

 private:
  struct Curve {
    std::vector<Point> kept;
    Point latest;
    int64_t count = 0;   // of points that came
    int64_t stride = 1;  // each so many is kept
  };

  mutable std::mutex mutex_;  // guards what follows
  std::map<std::string, Curve> curves_;
  int64_t num_added_ = 0;
};

}  // namespace baleen::server
