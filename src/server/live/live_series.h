#pragma once
// Named values that other parts of the program show in the live view, such as the reward of a
// training run. Owned by the API server; any thread. Bounded: later names beyond the limit are
// refused.
//
//   api_server.live_series().set("reward", 0.71);

#include <map>
#include <mutex>
#include <string>

namespace baleen::server {

class LiveSeries {
 public:
  static constexpr size_t kMostNames = 64;

  /// False when there are too many names, or the value is not finite; then nothing changes.
  bool set(const std::string& name, double value);
  std::map<std::string, double> latest() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, double> values_;
};

}  // namespace baleen::server
