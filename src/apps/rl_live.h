#pragma once
// The page of `baleen rl --live`: the run's curves and its engine in a browser on this machine.
// Changes nothing of the run. Outlives the run whose events it joins; one thread.
//
//   RlLive live(8080);
//   live.add_to(events);
//   rl::run_rl(config, make_rl_executor, events);

#include <memory>

#include "http/server.h"
#include "rl/rl_run.h"
#include "server/live/live_server.h"

namespace baleen::apps {

class RlLive {
 public:
  /// Throws SystemError when the port is taken: now, not behind the warm-up.
  explicit RlLive(int port);
  RlLive(const RlLive&) = delete;
  RlLive& operator=(const RlLive&) = delete;

  /// `events.say` gets the address once there is an engine.
  void add_to(rl::RlEvents& events);

 private:
  void show(const policy::Metrics& line);

  http::ServerConfig config_;
  std::weak_ptr<server::LiveServer> server_;  // lives as long as the run's engine
};

}  // namespace baleen::apps
