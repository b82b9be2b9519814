#include "base/metrics.h"

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
  explicit PrometheusHistogram(prometheus::Histogram& histogram) : histogram_(histogram) {}
  void observe(double value) override { histogram_.Observe(value); }
  const void* key() const { return &histogram_; }

 private:
  prometheus::Histogram& histogram_;
};

// One wrapper per underlying metric: prometheus-cpp returns the same object for equal labels.
template <class Wrapper, class Metric>
Wrapper& wrap(std::deque<Wrapper>& wrappers, Metric& metric) {
  for (Wrapper& wrapper : wrappers) {
    if (wrapper.key() == &metric) {
      return wrapper;
    }
  }
  return wrappers.emplace_back(metric);
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
  return wrap(state_->histograms, family.Add(labels, upper_bounds));
}

std::string MetricRegistry::expose() const {
  return prometheus::TextSerializer().Serialize(state_->registry.Collect());
}

}  // namespace baleen
