#pragma once
// Counters of the HTTP side and of the process. Created once by the API server; any thread.
//
//   HttpMetrics m(registry);
//   m.on_request("POST", "/v1/completions");

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "base/metrics.h"

namespace baleen::server {

class HttpMetrics {
 public:
  explicit HttpMetrics(MetricRegistry& registry);

  void on_request(const std::string& method, const std::string& route);
  void on_response(const std::string& route, int status);
  /// Brings the process counters up to now; called before the page is written.
  void refresh();

 private:
  MetricRegistry& registry_;
  Gauge& active_;
  Counter& cpu_seconds_;
  std::mutex mutex_;
  int64_t num_active_ = 0;
  double counted_cpu_seconds_ = 0.0;
};

}  // namespace baleen::server
