#include "text/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace baleen::text {

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include_stop)
    : stops_(std::move(stops)), include_stop_(include_stop) {
  for (const std::string& stop : stops_) {
    BALEEN_CHECK(!stop.empty(), "a stop string is empty");
  }
}

std::string StopMatcher::push(std::string_view text) {
  if (matched_) {
    return {};
  }
  held_ += text;
  size_t best_end = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t begin = held_.find(stop);
    if (begin == std::string::npos) {
      continue;
    }
    const size_t end = begin + stop.size();
    if (end < best_end || (end == best_end && stop.size() > matched_->size())) {
      best_end = end;
      matched_ = stop;
    }
  }
  if (matched_) {
    held_.resize(include_stop_ ? best_end : best_end - matched_->size());
    return std::exchange(held_, {});
  }
  size_t num_held = 0;
  for (const std::string& stop : stops_) {
    for (size_t length = std::min(stop.size() - 1, held_.size()); length > num_held; --length) {
      if (held_.ends_with(std::string_view(stop).substr(0, length))) {
        num_held = length;
      }
    }
  }
  std::string out = held_.substr(0, held_.size() - num_held);
  held_.erase(0, out.size());
  return out;
}

std::string StopMatcher::flush() {
  return std::exchange(held_, {});
}

}  // namespace baleen::text
