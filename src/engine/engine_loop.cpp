#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "engine/engine_state.h"
#include "text/chat_markup.h"
#include "text/tokenizer.h"

namespace baleen::engine {
namespace {

constexpr double kMostPatience = 1e9;  // seconds; more does not fit

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
  out.max_prefills = config.max_prefills;
  out.preemption_threshold = config.preemption_threshold;
  out.max_accepted = capacity.max_drafts > 0 ? 1 : capacity.max_accepted;
  out.validate();
  return out;
}

DraftPlannerConfig draft_config(const EngineConfig& config, const ExecutorCapacity& capacity) {
  DraftPlannerConfig out;
  out.max_drafts = config.max_drafts < 0 ? capacity.max_drafts
                                         : std::min(config.max_drafts, capacity.max_drafts);
  out.adaptive = config.adaptive_drafts;
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
  return {.end_token_ids = config.end_token_ids,
          .reasoning_end_id = config.reasoning_end_id,
          .markup_id = tokenizer.find(text::kDsml).value_or(-1),
          .max_context = usable_context(capacity),
          .vocab_size = capacity.vocab_size,
          .choices = capacity.choices};
}

}  // namespace

Engine::State::State(EngineConfig config_in,
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
      limits{.max_context = usable_context(capacity),
             .cache_is_less = usable_context(capacity) < capacity.max_context,
             .vocab_size = capacity.vocab_size,
             .has_reasoning_end = config.reasoning_end_id >= 0,
             .records_choices = capacity.choices.has_value()},
      metrics(registry),
      draft_metrics(registry, draft_config(config, capacity).max_drafts),
      core(scheduler_config(config, capacity),
           capacity,
           *executor,
           metrics,
           environment.now,
           {.overlap = config.overlap,
            .decode_interval_s = 1e-3 * config.decode_interval_ms,
            .drafts = draft_config(config, capacity),
            .draft_metrics = &draft_metrics,
            .step_patience = std::chrono::nanoseconds(
                static_cast<int64_t>(1e9 * std::min(config.step_timeout_s, kMostPatience))),
            .on_late_step = [this](std::chrono::nanoseconds waited) { note_late_step(waited); },
            .weight_version = config.weight_version}) {
  stats.weight_version = core.weight_version();
  stats.capacity = capacity;
  stats.capacity.max_context = usable_context(capacity);
  if (core.cache() != nullptr) {
    stats.pages = core.cache()->budget();
  }
  stats.capacity.num_slots = core.scheduler().config().num_slots;
  stats.capacity.max_step_tokens = core.scheduler().config().max_step_tokens;
}

Status Engine::State::refusal(const std::string& id) const {
  switch (stats.state) {
    case EngineState::kRunning:
      break;
    case EngineState::kNotStarted:
      return engine_unavailable("the engine is starting");
    case EngineState::kDraining:
    case EngineState::kStopped:
      return engine_unavailable("the server is shutting down");
    case EngineState::kFailed:
      return engine_unavailable("the engine has failed and takes no requests");
  }
  if (!stats.lost_weights.empty()) {
    return engine_unavailable(stats.lost_weights);
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

Status Engine::State::on_engine_thread(std::function<Status(EngineCore&)> work) {
  std::future<Status> done;
  {
    std::lock_guard lock(mutex);
    if (stats.state != EngineState::kRunning && stats.state != EngineState::kDraining) {
      return engine_unavailable("the engine does not run");
    }
    orders.push_back({std::move(work), {}});
    done = orders.back().done.get_future();
    wake.notify_one();
  }
  try {
    return done.get();
  } catch (const std::future_error&) {  // it stopped or failed before it came to this
    return engine_unavailable("the engine does not run");
  }
}

void Engine::State::run(const std::stop_token& stop) {
  std::vector<std::unique_ptr<LiveRequest>> arrived;
  std::vector<SequenceId> aborted;
  std::vector<Order> ordered;
  std::vector<Status> answers;
  while (!stop.stop_requested()) {
    {
      std::unique_lock lock(mutex);
      if (!core.has_work()) {
        wake.wait(lock, stop, [&] {
          return !new_requests.empty() || !aborts.empty() || !orders.empty();
        });
      }
      arrived.swap(new_requests);
      aborted.swap(aborts);
      ordered.swap(orders);
    }
    for (auto& request : arrived) {
      core.add(std::move(request));
    }
    for (const SequenceId id : aborted) {
      core.abort(id);
    }
    answers.clear();
    for (Order& order : ordered) {
      answers.push_back(order.work(core));
    }
    core.expire(config.queue_timeout_s, config.request_timeout_s);
    // Aborted requests need not wait for the step of the others.
    publish_and_deliver();
    for (size_t i = 0; i < ordered.size(); ++i) {
      ordered[i].done.set_value(std::move(answers[i]));
    }
    arrived.clear();
    aborted.clear();
    ordered.clear();
    if (core.has_work()) {
      core.turn();
      publish_and_deliver();
    }
  }
  {
    std::lock_guard lock(mutex);
    stats.state = EngineState::kStopped;
    arrived.swap(new_requests);
    orders.clear();
  }
  for (auto& request : arrived) {
    core.add(std::move(request));
  }
  core.end_all(FinishReason::kError, engine_unavailable("the server is shutting down"));
  core.settle_down();
  publish_and_deliver();
}

void Engine::State::publish_and_deliver() {
  core.report();
  const std::span<Delivery> deliveries = core.deliveries();
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
    stats.is_paused = core.is_paused();
    stats.weight_version = core.weight_version();
    stats.released = core.released();
    stats.lost_weights = core.lost_weights();
    stats.num_steps = core.num_steps();
    stats.num_used_tokens = core.scheduler().num_used_tokens();
    stats.num_preemptions = core.scheduler().num_preemptions();
    stats.num_draws = core.num_draws();
    stats.num_drawn = core.num_drawn();
    stats.scheduling_s = core.scheduling_s();
    stats.drafts = draft_metrics.totals();
    if (core.cache() != nullptr) {
      stats.cache = core.cache()->stats();
      stats.pages = core.cache()->budget();
    }
    if (live.empty()) {
      idle.notify_all();
    }
  }
  for (Delivery& delivery : deliveries) {
    delivery.sink->on_event(std::move(delivery.event));
  }
  core.clear_deliveries();
}

void Engine::State::note_late_step(std::chrono::nanoseconds waited) {
  const double seconds = std::chrono::duration<double>(waited).count();
  metrics.late_step_seconds.set(seconds);
  double before = seconds;
  {
    std::lock_guard lock(mutex);
    std::swap(stats.late_step_s, before);
  }
  if (before == 0.0) {
    metrics.late_steps.add();
    log::error("engine", "step late step={} waited_s={:.1f}", core.num_steps(), seconds);
  } else if (seconds == 0.0) {
    log::warn("engine", "late step ended step={} waited_s={:.1f}", core.num_steps(), before);
  }
}

void Engine::State::fail(const std::string& message) {
  log::error("engine", "failed message=\"{}\"", message);
  metrics.late_step_seconds.set(0.0);
  std::vector<std::unique_ptr<LiveRequest>> arrived;
  {
    std::lock_guard lock(mutex);
    stats.state = EngineState::kFailed;
    stats.late_step_s = 0.0;
    failure = message;
    arrived.swap(new_requests);
    orders.clear();
  }
  for (auto& request : arrived) {
    core.add(std::move(request));
  }
  core.end_all(FinishReason::kError,
               engine_unavailable("the engine has failed and takes no requests"));
  core.settle_down();
  publish_and_deliver();
}

}  // namespace baleen::engine
