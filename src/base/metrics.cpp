#include "base/metrics.h"

#include <algorithm>
#include <deque>
#include <mutex>

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

namespace baleen {
namespace {

class PrometheusCounter final : public Counter {
 public:
  explicit PrometheusCounter(prometheus::Counter& counter) : counter_(counter) {}
  void add(double amount) override { counter_.Increment(amount); }
  double value() const override { return counter_.Value(); }
  const void* key() const { return &counter_; }

 private:
  prometheus::Counter& counter_;
};

class PrometheusGauge final : public Gauge {
 public:
  explicit PrometheusGauge(prometheus::Gauge& gauge) : gauge_(gauge) {}
  void set(double value) override { gauge_.Set(value); }
  double value() const override { return gauge_.Value(); }
  const void* key() const { return &gauge_; }

 private:
  prometheus::Gauge& gauge_;
};

class PrometheusHistogram final : public Histogram {
 public:
  PrometheusHistogram(prometheus::Histogram& histogram, const std::vector<double>& upper_bounds)
      : histogram_(histogram), upper_bounds_(upper_bounds) {}
  void observe(double value) override { histogram_.Observe(value); }
  void observe_many(double value, int64_t count) override {
    const auto place = std::lower_bound(upper_bounds_.begin(), upper_bounds_.end(), value);
    std::lock_guard lock(mutex_);
    increments_.assign(upper_bounds_.size() + 1, 0.0);
    increments_[static_cast<size_t>(place - upper_bounds_.begin())] = static_cast<double>(count);
    histogram_.ObserveMultiple(increments_, value * static_cast<double>(count));
  }
  const void* key() const { return &histogram_; }

 private:
  prometheus::Histogram& histogram_;
  const std::vector<double> upper_bounds_;
  std::mutex mutex_;
  std::vector<double> increments_;  // guarded by the mutex; kept for its memory
};

// One wrapper per underlying metric: prometheus-cpp returns the same object for equal labels.
template <class Wrapper, class Metric, class... Rest>
Wrapper& wrap(std::deque<Wrapper>& wrappers, Metric& metric, const Rest&... rest) {
  for (Wrapper& wrapper : wrappers) {
    if (wrapper.key() == &metric) {
      return wrapper;
    }
  }
  return wrappers.emplace_back(metric, rest...);
}

}  // namespace

struct MetricRegistry::State {
  MetricLabels constant_labels;
  prometheus::Registry registry{prometheus::Registry::InsertBehavior::Merge};
  std::mutex mutex;  // guards the wrapper lists
  std::deque<PrometheusCounter> counters;
  std::deque<PrometheusGauge> gauges;
  std::deque<PrometheusHistogram> histograms;
};

MetricRegistry::MetricRegistry(MetricLabels constant_labels) : state_(std::make_unique<State>()) {
  state_->constant_labels = std::move(constant_labels);
}

MetricRegistry::~MetricRegistry() = default;

Counter& MetricRegistry::counter(const std::string& name,
                                 const std::string& help,
                                 const MetricLabels& labels) {
  auto& family = prometheus::BuildCounter()
                     .Name(name)
                     .Help(help)
                     .Labels(state_->constant_labels)
                     .Register(state_->registry);
  std::lock_guard lock(state_->mutex);
  return wrap(state_->counters, family.Add(labels));
}

Gauge& MetricRegistry::gauge(const std::string& name,
                             const std::string& help,
                             const MetricLabels& labels) {
  auto& family = prometheus::BuildGauge()
                     .Name(name)
                     .Help(help)
                     .Labels(state_->constant_labels)
                     .Register(state_->registry);
  std::lock_guard lock(state_->mutex);
  return wrap(state_->gauges, family.Add(labels));
}

Histogram& MetricRegistry::histogram(const std::string& name,
                                     const std::string& help,
                                     const std::vector<double>& upper_bounds,
                                     const MetricLabels& labels) {
  auto& family = prometheus::BuildHistogram()
                     .Name(name)
                     .Help(help)
                     .Labels(state_->constant_labels)
                     .Register(state_->registry);
  std::lock_guard lock(state_->mutex);
  return wrap(state_->histograms, family.Add(labels, upper_bounds), upper_bounds);
}

std::string MetricRegistry::expose() const {
  return prometheus::TextSerializer().Serialize(state_->registry.Collect());
}

}  // namespace baleen
