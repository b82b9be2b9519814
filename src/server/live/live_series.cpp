#include "server/live/live_series.h"

#include <cmath>

namespace baleen::server {

bool LiveSeries::add(const std::string& name, double at, double value) {
  if (!std::isfinite(at) || !std::isfinite(value)) {
    return false;
  }
  const std::lock_guard lock(mutex_);
  if (!curves_.contains(name) && curves_.size() >= kMostNames) {
    return false;
  }
  Curve& curve = curves_[name];
  curve.latest = {at, value};
  if (curve.count++ % curve.stride == 0) {
    if (curve.kept.size() == kMostPoints) {
      for (size_t i = 0; 2 * i < kMostPoints; ++i) {
        curve.kept[i] = curve.kept[2 * i];
      }
      curve.kept.resize(kMostPoints / 2);
      curve.stride *= 2;
    }
    curve.kept.push_back(curve.latest);
  }
  ++num_added_;
  return true;
}

std::map<std::string, double> LiveSeries::latest() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, double> out;
  for (const auto& [name, curve] : curves_) {
    out[name] = curve.latest.value;
  }
  return out;
}

std::map<std::string, std::vector<LiveSeries::Point>> LiveSeries::curves() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::vector<Point>> out;
  for (const auto& [name, curve] : curves_) {
    std::vector<Point>& points = out[name] = curve.kept;
    if (points.back() != curve.latest) {
      points.push_back(curve.latest);
    }
  }
  return out;
}

int64_t LiveSeries::num_added() const {
  const std::lock_guard lock(mutex_);
  return num_added_;
}

}  // namespace baleen::server
