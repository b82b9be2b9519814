#include "server/http_metrics.h"

#include <ctime>

namespace baleen::server {

HttpMetrics::HttpMetrics(MetricRegistry& registry)
    : registry_(registry),
      active_(registry.gauge("sglang:http_requests_active", "HTTP requests in progress.")),
      cpu_seconds_(registry.counter("sglang:process_cpu_seconds_total",
                                    "CPU time of the process, user and system.")) {}

void HttpMetrics::on_request(const std::string& method, const std::string& route) {
  registry_
      .counter("sglang:http_requests_total",
               "HTTP requests received.",
               {{"method", method}, {"endpoint", route}})
      .add();
  const std::lock_guard lock(mutex_);
  active_.set(static_cast<double>(++num_active_));
}

void HttpMetrics::on_response(const std::string& route, int status) {
  registry_
      .counter("sglang:http_responses_total",
               "HTTP responses sent; 499: the client left before the end.",
               {{"status_code", std::to_string(status)}, {"endpoint", route}})
      .add();
  const std::lock_guard lock(mutex_);
  active_.set(static_cast<double>(--num_active_));
}

void HttpMetrics::refresh() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  const double seconds = static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  const std::lock_guard lock(mutex_);
  if (seconds > counted_cpu_seconds_) {
    cpu_seconds_.add(seconds - counted_cpu_seconds_);
    counted_cpu_seconds_ = seconds;
  }
}

}  // namespace baleen::server
