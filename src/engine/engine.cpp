#include "engine/engine.h"

#include <exception>
#include <random>
#include <utility>

#include <fmt/format.h>
#include <pthread.h>

#include "base/at_least.h"
#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/engine_state.h"
#include "text/tokenizer.h"

namespace baleen::engine {
namespace {

uint64_t seed_of_system() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
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
  check_at_least("max_running", max_running, 1);
  check_at_least("max_queued", max_queued, 0);
  check_at_least("max_step_tokens", max_step_tokens, 0);
  check_at_least("max_prefill_chunk", max_prefill_chunk, 1);
  check_at_least("max_prefills", max_prefills, 1);
  check_at_least("decode_interval_ms", decode_interval_ms, 0);
  check_at_least("preemption_threshold", preemption_threshold, -1);
  check_at_least("queue_timeout_s", queue_timeout_s, 0);
  check_at_least("request_timeout_s", request_timeout_s, 0);
  check_at_least("step_timeout_s", step_timeout_s, 0);
  check_at_least("max_drafts", max_drafts, -1);
}

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
            s.stats.capacity.max_context,
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

Status Engine::pause(PauseMode mode) {
  return state_->on_engine_thread([mode](EngineCore& core) {
    core.pause(mode);
    return Status();
  });
}

Status Engine::resume() {
  return state_->on_engine_thread([](EngineCore& core) { return core.resume(); });
}

Status Engine::flush_cache() {
  return state_->on_engine_thread([](EngineCore& core) {
    return core.flush_cache() ? Status() : Status::invalid("requests are running");
  });
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
  std::lock_guard lock(state_->mutex);
  const EngineStats& stats = state_->stats;
  return stats.state != EngineState::kFailed && stats.late_step_s == 0.0 &&
         stats.lost_weights.empty();
}

std::string Engine::health_message() const {
  std::lock_guard lock(state_->mutex);
  if (state_->failure.empty() && !state_->stats.lost_weights.empty()) {
    return state_->stats.lost_weights;
  }
  const double late_s = state_->stats.late_step_s;
  return state_->failure.empty() && late_s > 0.0
             ? fmt::format("a step has not ended for {:.0f} s", late_s)
             : state_->failure;
}

const EngineConfig& Engine::config() const {
  return state_->config;
}

ExecutorInfo Engine::executor_info() const {
  return state_->info;
}

}  // namespace baleen::engine
