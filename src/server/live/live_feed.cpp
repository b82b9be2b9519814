#include "server/live/live_feed.h"

#include <cstdio>
#include <ctime>
#include <string>
#include <utility>

#include <boost/json/serialize.hpp>
#include <pthread.h>
#include <unistd.h>

#include "server/api_error.h"
#include "server/live/live_json.h"

namespace baleen::server {
namespace {

double process_cpu_s() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

int64_t resident_bytes() {
  int64_t pages = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "re")) {
    if (std::fscanf(file, "%*s %ld", &pages) != 1) {  // NOLINT: the kernel writes it
      pages = 0;
    }
    std::fclose(file);
  }
  return pages * ::sysconf(_SC_PAGESIZE);
}

}  // namespace

LiveFeed::LiveFeed(engine::Engine& engine, std::chrono::milliseconds interval)
    : engine_(engine),
      interval_(interval),
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

void LiveFeed::add(http::ResponseWriter writer) {
  const std::lock_guard lock(mutex_);
  if (is_closed_ || viewers_.size() >= kMostViewers) {
    writer.respond(error_response(
        {StatusCode::kUnavailable,
         is_closed_ ? "the server is shutting down" : "too many look at the live view already",
         {},
         {}}));
    return;
  }
  viewers_.push_back(std::move(writer).start_events());
  is_new_ = true;
  wake_.notify_one();
}

void LiveFeed::close() {
  std::vector<http::EventStream> viewers;
  {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    viewers.swap(viewers_);
  }
  thread_.request_stop();
  for (http::EventStream& viewer : viewers) {
    viewer.close();
  }
}

size_t LiveFeed::num_viewers() const {
  const std::lock_guard lock(mutex_);
  return viewers_.size();
}

void LiveFeed::run(const std::stop_token& stop) {
  pthread_setname_np(pthread_self(), "live");
  while (!stop.stop_requested()) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, stop, [&] { return !viewers_.empty(); });
      is_new_ = false;
    }
    if (stop.stop_requested()) {
      return;
    }
    const std::string text = event();
    std::unique_lock lock(mutex_);
    std::erase_if(viewers_, [&](http::EventStream& viewer) { return !viewer.send(text); });
    wake_.wait_for(lock, stop, interval_, [&] { return is_new_; });
  }
}

std::string LiveFeed::event() {
  LiveMoment moment;
  // A step may take long: then the numbers of the one before are shown again.
  const Result<engine::EngineView> view = engine_.look({}, interval_ / 2);
  if (view.ok()) {
    view_ = *view;
  }
  moment.view = view_;
  moment.stats = engine_.stats();
  moment.time_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count();
  moment.cpu_s = process_cpu_s();
  moment.resident_bytes = resident_bytes();
  moment.curves = series_.latest();
  moment.curve_points = series_.num_added();
  return json::serialize(live_json(moment));
}

}  // namespace baleen::server
