#pragma once
// Counters, gauges and histograms with Prometheus text exposition. A registry is owned by the
// program and passed down; the handles it returns live as long as the registry and may be used from
// any thread.
//
//   MetricRegistry metrics({{"model_name", "abacus"}});
//   Counter& requests = metrics.counter("sglang:num_requests_total", "Requests finished.");
//   requests.add();
//   std::string page = metrics.expose();

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace baleen {

using MetricLabels = std::map<std::string, std::string>;

class Counter {
 public:
  virtual ~Counter() = default;
  virtual void add(double amount = 1.0) = 0;  // amount >= 0
  virtual double value() const = 0;
};

class Gauge {
 public:
  virtual ~Gauge() = default;
  virtual void set(double value) = 0;
  virtual double value() const = 0;
};

class Histogram {
 public:
  virtual ~Histogram() = default;
  virtual void observe(double value) = 0;
  /// As `count` calls of observe, for the price of one.
  virtual void observe_many(double value, int64_t count) = 0;
};

class MetricRegistry {
 public:
  explicit MetricRegistry(MetricLabels constant_labels = {});
  ~MetricRegistry();
  MetricRegistry(const MetricRegistry&) = delete;
  MetricRegistry& operator=(const MetricRegistry&) = delete;

  /// The same name and labels give the same object. A name keeps one kind and one help text.
  Counter& counter(const std::string& name,
                   const std::string& help,
                   const MetricLabels& labels = {});
  Gauge& gauge(const std::string& name, const std::string& help, const MetricLabels& labels = {});
  Histogram& histogram(const std::string& name,
                       const std::string& help,
                       const std::vector<double>& upper_bounds,
                       const MetricLabels& labels = {});
  /// Prometheus text format, version 0.0.4.
  std::string expose() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace baleen
