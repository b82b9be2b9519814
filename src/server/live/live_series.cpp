#include "server/live/live_series.h"

#include <cmath>

namespace baleen::server {

bool LiveSeries::set(const std::string& name, double value) {
  if (!std::isfinite(value)) {
    return false;
  }
  const std::lock_guard lock(mutex_);
  if (!values_.contains(name) && values_.size() >= kMostNames) {
    return false;
  }
  values_[name] = value;
  return true;
}

std::map<std::string, double> LiveSeries::latest() const {
  const std::lock_guard lock(mutex_);
  return values_;
}

}  // namespace baleen::server
