#pragma once
// The stream behind the live view: once a second the same event to everyone who looks. Without
// viewers its thread sleeps and nothing is gathered. Owned by the API server; the engine outlives
// it. Any thread.
//
//   LiveFeed feed(engine);
//   feed.add(std::move(writer));   // the answer to GET /live
//   feed.close();                  // ends all streams; later ones are refused

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "http/response_writer.h"
#include "server/live/live_series.h"

namespace baleen::server {

class LiveFeed {
 public:
  static constexpr size_t kMostViewers = 256;

  explicit LiveFeed(engine::Engine& engine,
                    std::chrono::milliseconds interval = std::chrono::milliseconds(1000));
  ~LiveFeed() { close(); }
  LiveFeed(const LiveFeed&) = delete;
  LiveFeed& operator=(const LiveFeed&) = delete;

  /// Answers with a stream, or with 503 when there are too many viewers or the feed is closed.
  void add(http::ResponseWriter writer);
  void close();

  size_t num_viewers() const;
  LiveSeries& series() { return series_; }

 private:
  void run(const std::stop_token& stop);
  std::string event();

  engine::Engine& engine_;
  const std::chrono::milliseconds interval_;
  const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  LiveSeries series_;
  engine::EngineView view_;   // the latest that was had; the feed's thread
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable_any wake_;
  std::vector<http::EventStream> viewers_;
  bool is_new_ = false;  // someone came: an event at once
  bool is_closed_ = false;
  std::jthread thread_;  // last: it uses the rest
};

}  // namespace baleen::server
