#pragma once
// Whether the engine still works: sends it a request for one token and waits until that is answered
// or any step was made. Calls that come while a probe is on its way share its result. Owned by the
// API server; any thread.
//
//   HealthProbe probe(engine, prompt_id, std::chrono::seconds(20));
//   probe.ask([](const Status& status) { ... });   // from the probe's thread

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"

namespace baleen::server {

class HealthProbe {
 public:
  using Reply = std::function<void(const Status&)>;

  /// `engine` outlives the probe. `prompt_id`: a token of the vocabulary.
  HealthProbe(engine::Engine& engine, int32_t prompt_id, std::chrono::milliseconds timeout);

  /// `reply` is called once: ok, or kUnavailable with the reason.
  void ask(Reply reply);

 private:
  void run(const std::stop_token& stop);
  Status try_engine(const std::stop_token& stop);

  engine::Engine& engine_;
  const int32_t prompt_id_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable_any asked_;
  std::vector<Reply> replies_;
  std::jthread thread_;
};

}  // namespace baleen::server
