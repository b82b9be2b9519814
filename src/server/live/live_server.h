#pragma once
// The page's live view alone, for work that has an engine and takes no requests from outside, such
// as a training run with its curves. It lists no model, so the page shows the live view. Made and
// destroyed by one thread; the engine outlives it.
//
//   LiveServer live(config, engine);       // binds, throws SystemError
//   live.start();
//   live.series().add("reward", 12, 0.71);

#include <memory>
#include <string>

#include "engine/engine.h"
#include "http/server.h"
#include "server/live/live_series.h"

namespace baleen::server {

class LiveServer {
 public:
  LiveServer(http::ServerConfig config, engine::Engine& engine);
  /// Ends every stream and closes the socket.
  ~LiveServer();
  LiveServer(const LiveServer&) = delete;
  LiveServer& operator=(const LiveServer&) = delete;

  void start();
  std::string url() const;
  LiveSeries& series();

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace baleen::server
