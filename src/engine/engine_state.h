#pragma once
// What an Engine is made of: the mail that any thread may put in, and the loop of the engine's
// thread that takes it out. Private to the engine (engine.cpp, engine_loop.cpp).

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_core.h"
#include "engine/engine_metrics.h"
#include "engine/request_limits.h"

namespace baleen::engine {

inline Status engine_unavailable(std::string message) {
  return {StatusCode::kUnavailable, std::move(message), {}, {}};
}

struct Engine::State {
  State(EngineConfig config_in,
        std::unique_ptr<Executor> executor_in,
        std::shared_ptr<const text::Tokenizer> tokenizer_in,
        MetricRegistry& registry,
        EngineEnvironment environment_in);

  /// The engine's thread.
  void run(const std::stop_token& stop);
  /// On the engine's thread: ends everything, for good.
  void fail(const std::string& message);
  void publish_and_deliver();
  /// On the engine's thread: a step is waited for; 0: it came.
  void note_late_step(std::chrono::nanoseconds waited);
  /// Has the engine's thread do `work` between two turns, and waits for that.
  Status on_engine_thread(std::function<Status(EngineCore&)> work);
  Status refusal(const std::string& id) const;  // with `mutex` held

  const EngineConfig config;
  const std::unique_ptr<Executor> executor;
  const ExecutorInfo info;
  const ExecutorCapacity capacity;
  const std::shared_ptr<const text::Tokenizer> tokenizer;  // with the server and the streams
  const EngineEnvironment environment;
  const GenerationRules rules;
  const RequestLimits limits;
  EngineMetrics metrics;
  DraftMetrics draft_metrics;
  EngineCore core;  // the engine thread's

  struct Order {
    std::function<Status(EngineCore&)> work;
    std::promise<Status> done;
  };
  struct LiveId {
    SequenceId sequence;
    bool aborted = false;
  };
  mutable std::mutex mutex;                                // guards what follows, down to `stats`
  std::condition_variable_any wake;                        // new mail, for the engine's thread
  std::condition_variable idle;                            // no live request, for drain()
  std::vector<std::unique_ptr<LiveRequest>> new_requests;  // bounded by max_running + max_queued
  std::vector<SequenceId> aborts;                          // at most one per live request
  std::vector<Order> orders;
  std::map<std::string, LiveId, std::less<>> live;
  int64_t next_sequence = 0;
  std::string failure;
  EngineStats stats;

  std::mutex lifecycle;  // guards `thread`
  std::jthread thread;
};

}  // namespace baleen::engine
