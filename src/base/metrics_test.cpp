#include "base/metrics.h"

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

TEST(MetricRegistryTest, SameNameAndLabelsIsTheSameMetric) {
  MetricRegistry metrics;
  Counter& first = metrics.counter("baleen:things_total", "Things.");
  first.add(1);
  EXPECT_EQ(&metrics.counter("baleen:things_total", "Things."), &first);
  EXPECT_EQ(metrics.counter("baleen:things_total", "Things.").value(), 1.0);
}

}  // namespace
}  // namespace baleen
