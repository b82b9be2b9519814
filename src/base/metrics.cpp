#include "base/metrics.h"

#include <algorithm>
#include <atomic>
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

/// Observations wait in counters of its own, so that whoever observes takes no lock; the library's
/// histogram gets them when somebody reads.
class PrometheusHistogram final : public Histogram {
 public:
  PrometheusHistogram(prometheus::Histogram& histogram, const std::vector<double>& upper_bounds)
      : histogram_(histogram), upper_bounds_(upper_bounds), counts_(upper_bounds.size() + 1) {}
  void observe(double value) override { observe_many(value, 1); }
  void observe_many(double value, int64_t count) override {
    const auto place = std::lower_bound(upper_bounds_.begin(), upper_bounds_.end(), value);
    counts_[static_cast<size_t>(place - upper_bounds_.begin())].fetch_add(
        count, std::memory_order_relaxed);
    sum_.fetch_add(value * static_cast<double>(count), std::memory_order_relaxed);
  }
  /// One caller at a time.
  void hand_over() {
    std::vector<double> increments;
    for (std::atomic<int64_t>& count : counts_) {
      increments.push_back(static_cast<double>(count.exchange(0, std::memory_order_relaxed)));
    }
    histogram_.ObserveMultiple(increments, sum_.exchange(0.0, std::memory_order_relaxed));
  }
  const void* key() const { return &histogram_; }

 private:
  prometheus::Histogram& histogram_;
  const std::vector<double> upper_bounds_;
  std::vector<std::atomic<int64_t>> counts_;  // by bucket, not handed over yet
  std::atomic<double> sum_{0.0};
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
  std::mutex mutex;  // guards the wrapper lists, and hands one reader at a time what waits there
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
  {
    std::lock_guard lock(state_->mutex);
    for (PrometheusHistogram& histogram : state_->histograms) {
      histogram.hand_over();
    }
  }
  return prometheus::TextSerializer().Serialize(state_->registry.Collect());
}

}  // namespace baleen
