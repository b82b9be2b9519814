#include "engine/engine.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <random>
#include <stop_token>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <pthread.h>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/engine_core.h"
#include "engine/engine_metrics.h"
#include "engine/request_limits.h"
#include "text/chat_markup.h"
#include "text/tokenizer.h"

namespace baleen::engine {
namespace {

uint64_t seed_of_system() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

Status unavailable(std::string message) {
  return {StatusCode::kUnavailable, std::move(message), {}, {}};
}

SchedulerConfig scheduler_config(const EngineConfig& config, const ExecutorCapacity& capacity) {
  config.validate();
  if (capacity.num_slots < 1 || capacity.max_context < 1 || capacity.max_step_tokens < 1 ||
      capacity.vocab_size < 1) {
    throw ConfigError(fmt::format("executor without capacity: slots={} context={} step={} vocab={}",
                                  capacity.num_slots,
                                  capacity.max_context,
                                  capacity.max_step_tokens,
                                  capacity.vocab_size));
  }
  SchedulerConfig out;
  out.num_slots = std::min(config.max_running, capacity.num_slots);
  out.max_step_tokens = config.max_step_tokens == 0
                            ? capacity.max_step_tokens
                            : std::min(config.max_step_tokens, capacity.max_step_tokens);
  out.max_prefill_chunk = config.max_prefill_chunk;
  out.validate();
  return out;
}

GenerationRules generation_rules(const EngineConfig& config,
                                 const ExecutorCapacity& capacity,
                                 const text::Tokenizer& tokenizer) {
  std::vector<int32_t> ids = config.end_token_ids;
  if (config.reasoning_end_id >= 0) {
    ids.push_back(config.reasoning_end_id);
  }
  for (const int32_t id : ids) {
    if (id < 0 || id >= capacity.vocab_size) {
      throw ConfigError(
          fmt::format("token {} is outside the vocabulary of {}", id, capacity.vocab_size));
    }
  }
  return {config.end_token_ids,
          config.reasoning_end_id,
          tokenizer.find(text::kDsml).value_or(-1),
          capacity.max_context,
          capacity.vocab_size};
}

}  // namespace

const char* engine_state_name(EngineState state) {
  switch (state) {
    case EngineState::kNotStarted:
      return "not started";
    case EngineState::kRunning:
      return "running";
    case EngineState::kDraining:
      return "draining";
    case EngineState::kStopped:
      return "stopped";
    case EngineState::kFailed:
      return "failed";
  }
  return "unknown";
}

EngineConfig EngineConfig::for_tokenizer(const text::Tokenizer& tokenizer) {
  EngineConfig config;
  if (tokenizer.eos_id() >= 0) {
    config.end_token_ids = {tokenizer.eos_id()};
  }
  config.reasoning_end_id = tokenizer.find("</think>").value_or(-1);
  return config;
}

void EngineConfig::validate() const {
  const auto at_least = [](const char* name, double value, double least) {
    if (!(value >= least)) {
      throw ConfigError(fmt::format("{} must be at least {}, is {}", name, least, value));
    }
  };
  at_least("max_running", max_running, 1);
  at_least("max_queued", max_queued, 0);
  at_least("max_step_tokens", max_step_tokens, 0);
  at_least("max_prefill_chunk", max_prefill_chunk, 1);
  at_least("queue_timeout_s", queue_timeout_s, 0);
}

struct Engine::State {
  State(EngineConfig config_in,
        std::unique_ptr<Executor> executor_in,
        std::shared_ptr<const text::Tokenizer> tokenizer_in,
        MetricRegistry& registry,
        EngineEnvironment environment_in)
      : config(std::move(config_in)),
        executor(std::move(executor_in)),
        info(executor->info()),
        capacity(executor->capacity()),
        tokenizer(std::move(tokenizer_in)),
        environment(std::move(environment_in)),
        rules(generation_rules(config, capacity, *tokenizer)),
        limits{capacity.max_context, capacity.vocab_size, config.reasoning_end_id >= 0},
        metrics(registry),
        core(scheduler_config(config, capacity), capacity, *executor, metrics, environment.now) {
    stats.capacity = capacity;
    stats.capacity.num_slots = core.scheduler().config().num_slots;
    stats.capacity.max_step_tokens = core.scheduler().config().max_step_tokens;
  }

  void run(const std::stop_token& stop);
  void fail(const std::string& message);
  void publish_and_deliver();
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
  EngineCore core;  // the engine thread's

  struct LiveId {
    SequenceId sequence;
    bool aborted = false;
  };
  mutable std::mutex mutex;                                // guards what follows, down to `stats`
  std::condition_variable_any wake;                        // new mail, for the engine's thread
  std::condition_variable idle;                            // no live request, for drain()
  std::vector<std::unique_ptr<LiveRequest>> new_requests;  // bounded by max_running + max_queued
  std::vector<SequenceId> aborts;                          // at most one per live request
  std::map<std::string, LiveId, std::less<>> live;
  int64_t next_sequence = 0;
  std::string failure;
  EngineStats stats;

  std::mutex lifecycle;  // guards `thread`
  std::jthread thread;
};

Engine::Engine(EngineConfig config,
               std::unique_ptr<Executor> executor,
               std::shared_ptr<const text::Tokenizer> tokenizer,
               MetricRegistry& metrics,
               EngineEnvironment environment) {
  BALEEN_CHECK(executor != nullptr && tokenizer != nullptr);
  if (!environment.now) {
    environment.now = [] { return std::chrono::steady_clock::now(); };
  }
  if (!environment.draw_seed) {
    environment.draw_seed = seed_of_system;
  }
  state_ = std::make_unique<State>(std::move(config),
                                   std::move(executor),
                                   std::move(tokenizer),
                                   metrics,
                                   std::move(environment));
}

Engine::~Engine() {
  stop();
}

void Engine::start() {
  State& s = *state_;
  std::lock_guard life(s.lifecycle);
  {
    std::lock_guard lock(s.mutex);
    BALEEN_CHECK(s.stats.state == EngineState::kNotStarted,
                 "start() on an engine that is {}",
                 engine_state_name(s.stats.state));
    s.stats.state = EngineState::kRunning;
  }
  log::info("engine",
            "started model={} slots={} queue={} context={} step_tokens={} prefill_chunk={} "
            "numerics={}",
            s.info.model_name,
            s.stats.capacity.num_slots,
            s.config.max_queued,
            s.capacity.max_context,
            s.stats.capacity.max_step_tokens,
            s.config.max_prefill_chunk,
            s.info.numerics);
  s.thread = std::jthread([&s](const std::stop_token& stop) {
    pthread_setname_np(pthread_self(), "engine");
    try {
      s.run(stop);
    } catch (const std::exception& e) {
      s.fail(e.what());
    } catch (...) {
      s.fail("unknown exception");
    }
  });
}

Status Engine::State::refusal(const std::string& id) const {
  switch (stats.state) {
    case EngineState::kRunning:
      break;
    case EngineState::kNotStarted:
      return unavailable("the engine is starting");
    case EngineState::kDraining:
    case EngineState::kStopped:
      return unavailable("the server is shutting down");
    case EngineState::kFailed:
      return unavailable("the engine has failed and takes no requests");
  }
  if (live.contains(id)) {
    return Status::invalid(fmt::format("a request with id {} is being served", id), "id");
  }
  if (static_cast<int64_t>(live.size()) >=
      static_cast<int64_t>(stats.capacity.num_slots) + config.max_queued) {
    return {StatusCode::kResourceExhausted, "The request queue is full.", {}, {}};
  }
  return {};
}

Status Engine::submit(GenerationRequest request, std::shared_ptr<OutputSink> sink) {
  State& s = *state_;
  BALEEN_CHECK(sink != nullptr);
  if (Status status = check_request(request, s.limits); !status.ok()) {
    return status;
  }
  const std::string id = request.id;
  {
    std::lock_guard lock(s.mutex);
    if (Status status = s.refusal(id); !status.ok()) {
      return status;
    }
  }
  const EnginePoint now = s.environment.now();
  const uint64_t seed = request.sampling.seed ? 0 : s.environment.draw_seed();
  std::unique_ptr<LiveRequest> live(
      new LiveRequest{SequenceId(),
                      Generation(std::move(request), s.rules, s.tokenizer, seed),
                      std::move(sink),
                      now,
                      now});
  std::lock_guard lock(s.mutex);
  if (Status status = s.refusal(id); !status.ok()) {
    return status;
  }
  live->sequence = SequenceId(s.next_sequence++);
  s.live.emplace(id, State::LiveId{live->sequence});
  s.new_requests.push_back(std::move(live));
  ++s.stats.num_waiting;
  s.wake.notify_one();
  return {};
}

void Engine::abort(std::string_view id) {
  State& s = *state_;
  std::lock_guard lock(s.mutex);
  const auto found = s.live.find(id);
  if (found == s.live.end() || found->second.aborted) {
    s.metrics.late_events.add();
    return;
  }
  found->second.aborted = true;
  s.aborts.push_back(found->second.sequence);
  s.wake.notify_one();
}

void Engine::State::run(const std::stop_token& stop) {
  std::vector<std::unique_ptr<LiveRequest>> arrived;
  std::vector<SequenceId> aborted;
  while (!stop.stop_requested()) {
    {
      std::unique_lock lock(mutex);
      if (!core.has_work()) {
        wake.wait(lock, stop, [&] { return !new_requests.empty() || !aborts.empty(); });
      }
      arrived.swap(new_requests);
      aborted.swap(aborts);
    }
    for (auto& request : arrived) {
      core.add(std::move(request));
    }
    for (const SequenceId id : aborted) {
      core.abort(id);
    }
    arrived.clear();
    aborted.clear();
    if (config.queue_timeout_s > 0.0) {
      core.expire_queue(config.queue_timeout_s);
    }
    // Aborted requests need not wait for the step of the others.
    publish_and_deliver();
    if (core.has_work()) {
      core.step();
      publish_and_deliver();
    }
  }
  {
    std::lock_guard lock(mutex);
    stats.state = EngineState::kStopped;
    arrived.swap(new_requests);
  }
  for (auto& request : arrived) {
    core.add(std::move(request));
  }
  core.end_all(FinishReason::kError, unavailable("the server is shutting down"));
  publish_and_deliver();
}

void Engine::State::publish_and_deliver() {
  core.report();
  std::vector<Delivery>& deliveries = core.deliveries();
  {
    // Slots, ids and numbers are settled before a last event is seen.
    std::lock_guard lock(mutex);
    for (const Delivery& delivery : deliveries) {
      if (!delivery.finished_id.empty()) {
        live.erase(delivery.finished_id);
      }
    }
    stats.num_running = core.scheduler().num_running();
    stats.num_waiting = core.scheduler().num_waiting() + static_cast<int32_t>(new_requests.size());
    stats.num_steps = core.num_steps();
    stats.num_used_tokens = core.scheduler().num_used_tokens();
    if (live.empty()) {
      idle.notify_all();
    }
  }
  for (Delivery& delivery : deliveries) {
    delivery.sink->on_event(std::move(delivery.event));
  }
  deliveries.clear();
}

void Engine::State::fail(const std::string& message) {
  log::error("engine", "failed message=\"{}\"", message);
  std::vector<std::unique_ptr<LiveRequest>> arrived;
  {
    std::lock_guard lock(mutex);
    stats.state = EngineState::kFailed;
    failure = message;
    arrived.swap(new_requests);
  }
  for (auto& request : arrived) {
    core.add(std::move(request));
  }
  core.end_all(FinishReason::kError, unavailable("the engine has failed and takes no requests"));
  publish_and_deliver();
}

bool Engine::drain(std::chrono::milliseconds timeout) {
  State& s = *state_;
  bool complete = false;
  {
    std::unique_lock lock(s.mutex);
    if (s.stats.state == EngineState::kRunning) {
      s.stats.state = EngineState::kDraining;
    }
    complete = s.idle.wait_for(lock, timeout, [&] { return s.live.empty(); }) &&
               s.stats.state != EngineState::kFailed;
  }
  stop();
  return complete;
}

void Engine::stop() {
  State& s = *state_;
  std::lock_guard life(s.lifecycle);
  if (s.thread.joinable()) {
    s.thread.request_stop();
    s.thread.join();
  }
  std::lock_guard lock(s.mutex);
  if (s.stats.state != EngineState::kFailed) {
    s.stats.state = EngineState::kStopped;
  }
}

EngineStats Engine::stats() const {
  std::lock_guard lock(state_->mutex);
  return state_->stats;
}

bool Engine::healthy() const {
  return stats().state != EngineState::kFailed;
}

std::string Engine::health_message() const {
  std::lock_guard lock(state_->mutex);
  return state_->failure;
}

const EngineConfig& Engine::config() const {
  return state_->config;
}

ExecutorInfo Engine::executor_info() const {
  return state_->info;
}

}  // namespace baleen::engine
