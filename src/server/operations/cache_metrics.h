#pragma once
// The prefix cache's numbers on the metrics page, brought up to date when the page is read. Owned
// by the API server; any thread.
//
//   CacheMetrics cache(registry, engine);
//   cache.refresh();

#include <map>
#include <mutex>
#include <string>

#include "base/metrics.h"
#include "engine/engine.h"

namespace baleen::server {

class CacheMetrics {
 public:
  /// `registry` and `engine` outlive the object. Without a cache there are no such metrics.
  CacheMetrics(MetricRegistry& registry, const engine::Engine& engine);

  void refresh();

 private:
  void gauge(const std::string& name, const std::string& help, double value);
  /// `total` since the start.
  void counter(const std::string& name,
               const std::string& help,
               int64_t total,
               const MetricLabels& labels = {});

  MetricRegistry& registry_;
  const engine::Engine& engine_;
  std::mutex mutex_;
  std::map<std::string, int64_t> counted_;  // by name and label
};

}  // namespace baleen::server
