#include "base/metrics.h"

#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baleen {
namespace {

TEST(MetricRegistryTest, ExposesValuesWithConstantAndOwnLabels) {
  MetricRegistry metrics(MetricLabels{{"model_name", "toy"}});
  metrics.counter("sglang:num_requests_total", "Requests.", {{"reason", "stop"}}).add(2);
  metrics.gauge("sglang:num_running_reqs", "Running.").set(3);
  metrics.histogram("baleen:latency_seconds", "Latency.", {0.1, 1.0}).observe(0.5);
  const std::string page = metrics.expose();
  EXPECT_THAT(page, testing::HasSubstr("# TYPE sglang:num_requests_total counter"));
  EXPECT_THAT(page,
              testing::ContainsRegex("sglang:num_requests_total\\{[^}]*reason=\"stop\"[^}]*\\} 2"));
  EXPECT_THAT(page, testing::HasSubstr("sglang:num_running_reqs{model_name=\"toy\"} 3"));
  EXPECT_THAT(page, testing::ContainsRegex("latency_seconds_bucket\\{[^}]*le=\"1\"\\} 1"));
}

TEST(MetricRegistryTest, ManyObservationsAtOnceAreAsOneByOne) {
  const std::vector<double> bounds = {0.125, 1.0, 2.0};
  MetricRegistry together;
  MetricRegistry apart;
  Histogram& many = together.histogram("h", "H.", bounds);
  Histogram& single = apart.histogram("h", "H.", bounds);
  for (const auto& [value, count] : std::vector<std::pair<double, int64_t>>{
           {0.0625, 3}, {0.125, 1}, {0.5, 4}, {2.0, 2}, {8.0, 5}}) {
    many.observe_many(value, count);
    for (int64_t i = 0; i < count; ++i) {
      single.observe(value);
    }
  }
  many.observe_many(0.5, 0);
  EXPECT_EQ(together.expose(), apart.expose());
}

TEST(MetricRegistryTest, NoObservationIsLostBetweenReaders) {
  constexpr int kObservations = 2000;
  MetricRegistry metrics;
  Histogram& histogram = metrics.histogram("wait", "Waits.", {1.0, 2.0});
  const auto observe = [&] {
    for (int i = 0; i < kObservations; ++i) {
      histogram.observe(i % 2 == 0 ? 0.5 : 1.5);
    }
  };
  std::thread one(observe);
  std::thread two(observe);
  for (int i = 0; i < 50; ++i) {
    metrics.expose();
  }
  one.join();
  two.join();
  const std::string page = metrics.expose();
  EXPECT_NE(page.find("wait_count 4000"), std::string::npos) << page;
  EXPECT_NE(page.find("wait_sum 4000"), std::string::npos) << page;
  EXPECT_NE(page.find("wait_bucket{le=\"1\"} 2000"), std::string::npos) << page;
}

TEST(MetricRegistryTest, SameNameAndLabelsIsTheSameMetric) {
  MetricRegistry metrics;
  Counter& first = metrics.counter("baleen:things_total", "Things.");
  first.add(1);
  EXPECT_EQ(&metrics.counter("baleen:things_total", "Things."), &first);
  EXPECT_EQ(metrics.counter("baleen:things_total", "Things.").value(), 1.0);
}

}  // namespace
}  // namespace baleen
