#pragma once
// The API server: routes, keys, model card, health, metrics, and the way from a request's JSON to
// the engine and back. Owned by the program; the engine, tokenizer and registry outlive it.
//
//   ApiServer server(config, engine, tokenizer, metrics);   // binds, throws SystemError
//   server.start();
//   server.drain();        // on SIGTERM; returns when every answer is out or cut

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/metrics.h"
#include "engine/engine.h"
#include "server/live/live_series.h"
#include "server/server_config.h"

namespace baleen::text {
class Tokenizer;
}  // namespace baleen::text

namespace baleen::server {

class ApiServer {
 public:
  ApiServer(ServerConfig config,
            engine::Engine& engine,
            std::shared_ptr<const text::Tokenizer> tokenizer,
            MetricRegistry& metrics);
  ~ApiServer();
  ApiServer(const ApiServer&) = delete;
  ApiServer& operator=(const ApiServer&) = delete;

  void start();
  std::string url() const;
  /// Method and path of everything that is answered.
  std::vector<std::pair<std::string, std::string>> routes() const;
  int port() const;
  /// Values that the live view shows as curves.
  LiveSeries& live_series();

  /// Health turns 503 and new work is refused; answers in progress may finish within
  /// config.drain_timeout, the rest ends with an error. Stops the engine and closes the socket.
  /// True when nothing was cut off.
  bool drain();

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace baleen::server
