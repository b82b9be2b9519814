#include "engine/engine_core.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"

namespace baleen::engine {
namespace {

double seconds(EnginePoint from, EnginePoint to) {
  return std::chrono::duration<double>(to - from).count();
}

constexpr double kThroughputWindow = 1.0;  // seconds

int64_t token_capacity(const ExecutorCapacity& capacity) {
  return capacity.cache
             ? int64_t{capacity.cache->sizes.full_pages} * capacity.cache->geometry.page_tokens
             : capacity.num_slots * capacity.max_context;
}

}  // namespace

EngineCore::EngineCore(const SchedulerConfig& config,
                       const ExecutorCapacity& capacity,
                       Executor& executor,
                       EngineMetrics& metrics,
                       std::function<EnginePoint()> now,
                       const CoreOptions& options)
    : cache_(capacity.cache
                 ? std::make_unique<cache::SequenceCache>(*capacity.cache, executor.page_observer())
                 : nullptr),
      scheduler_(std::make_unique<Scheduler>(
          config, static_cast<const SequenceKeys&>(*this), cache_.get())),
      drafts_(options.drafts),
      draft_metrics_(options.draft_metrics),
      steps_{StepInFlight(config, capacity), StepInFlight(config, capacity)},
      metrics_(metrics),
      now_(std::move(now)),
      overlap_(options.overlap),
      pace_(options.decode_interval_s, config.max_prefill_chunk),
      num_total_tokens_(token_capacity(capacity)),
      throughput_since_(now_()),
      worker_(executor) {
  metrics_.max_total_num_tokens.set(static_cast<double>(num_total_tokens_));
}

cache::SequenceKey EngineCore::key(SequenceId id) const {
  const Generation& generation = live_.at(id)->generation;
  cache::SequenceKey key;
  key.ids = generation.tokens();
  // Scores of prompt tokens come from running them.
  key.reuse_limit = generation.wants_prompt_logprobs() ? 0 : -1;
  key.drafts = drafts_.drafts(id);
  return key;
}

bool EngineCore::can_run_ahead(SequenceId id, int32_t most) const {
  return !drafts_.drafts(id) && live_.at(id)->generation.can_run_ahead(most);
}

int32_t EngineCore::num_drafts(SequenceId id, int32_t num_rows) const {
  return std::min(drafts_.depth(id, num_rows), live_.at(id)->generation.most_drafts());
}

void EngineCore::add(std::unique_ptr<LiveRequest> request) {
  if (live_.empty()) {
    throughput_since_ = now_();  // idle time does not count
  }
  const SequenceId id = request->sequence;
  scheduler_->enqueue(id, request->generation.num_prompt_tokens(), request->generation.place());
  drafts_.add(id, request->generation.draft_limit());
  live_.emplace(id, std::move(request));
}

void EngineCore::abort(SequenceId id) {
  if (live_.contains(id)) {
    end(id, FinishReason::kAbort, {StatusCode::kCancelled, "the request was aborted", {}, {}});
  }
}

void EngineCore::expire(double queue_s, double request_s) {
  const EnginePoint now = now_();
  if (queue_s > 0.0) {
    for (SequenceId id = scheduler_->oldest_new();
         id.valid() && seconds(find(id).arrived, now) > queue_s;
         id = scheduler_->oldest_new()) {
      end(id,
          FinishReason::kError,
          {StatusCode::kUnavailable, "Request queue timeout reached.", {}, {}});
    }
  }
  if (request_s > 0.0) {
    std::vector<SequenceId> late;
    for (const auto& [id, request] : live_) {
      if (seconds(request->arrived, now) > request_s) {
        late.push_back(id);
      }
    }
    for (const SequenceId id : late) {
      end(id, FinishReason::kError, {StatusCode::kUnavailable, "Request timeout reached.", {}, {}});
    }
  }
}

void EngineCore::pause(PauseMode mode) {
  is_paused_ = true;
  while (num_in_flight_ > 0) {
    take_result();
  }
  switch (mode) {
    case PauseMode::kAbort:
      end_all(FinishReason::kAbort, {StatusCode::kCancelled, "the engine was paused", {}, {}});
      break;
    case PauseMode::kRetract:
      scheduler_->preempt_all();
      if (scheduler_->has_end_captures()) {
        start_step();  // without rows: what was preempted can then go on where it was
        take_result();
      }
      break;
    case PauseMode::kInPlace:
      break;
  }
}

bool EngineCore::flush_cache() {
  if (scheduler_->num_running() > 0) {
    return false;
  }
  while (num_in_flight_ > 0) {
    take_result();
  }
  if (cache_ != nullptr) {
    cache_->flush();
  }
  return true;
}

void EngineCore::end_all(FinishReason reason, const Status& error) {
  while (!live_.empty()) {
    end(live_.begin()->first, reason, error);
  }
}

void EngineCore::end(SequenceId id, FinishReason reason, Status error) {
  LiveRequest& request = find(id);
  OutputEvent event;
  request.generation.finish(reason, std::move(error), event);
  deliver(request, std::move(event));
}

void EngineCore::deliver(LiveRequest& request, OutputEvent&& event) {
  Delivery& delivery = deliveries_.emplace_back();
  delivery.sink = request.sink;
  delivery.event = std::move(event);
  if (!delivery.event.finish) {
    return;
  }
  const FinishInfo& info = *delivery.event.finish;
  if (info.reason == FinishReason::kAbort) {
    metrics_.num_aborted.add();
  } else {
    metrics_.num_requests.add();
    metrics_.e2e_latency.observe(seconds(request.arrived, now_()));
    metrics_.prompt_tokens_histogram.observe(static_cast<double>(info.prompt_tokens));
    metrics_.generation_tokens_histogram.observe(static_cast<double>(info.completion_tokens));
  }
  if (const int64_t blocks = request.generation.unparsable_tool_blocks(); blocks > 0) {
    metrics_.unparsable_tool_blocks.add(static_cast<double>(blocks));
  }
  delivery.finished_id = request.generation.id();
  const SequenceId id = request.sequence;
  const bool finished = info.reason == FinishReason::kStop || info.reason == FinishReason::kLength;
  scheduler_->remove(id, finished ? Ending::kFinished : Ending::kAborted);
  drafts_.remove(id);
  live_.erase(id);  // `request` ends here
}

void EngineCore::count_tokens(LiveRequest& request, int32_t num_new) {
  if (num_new == 0) {
    return;
  }
  const EnginePoint now = now_();
  if (request.generation.num_generated() == num_new) {
    metrics_.time_to_first_token.observe(seconds(request.arrived, now));
  } else {
    const double interval = seconds(request.last_token, now) / num_new;
    for (int32_t i = 0; i < num_new; ++i) {
      metrics_.inter_token_latency.observe(interval);
    }
  }
  request.last_token = now;
  metrics_.generation_tokens.add(num_new);
  throughput_tokens_ += num_new;
}

/// The row gave `num_new` tokens: the one that follows it was planned for a single one.
void EngineCore::move_followers(int32_t row, int32_t num_new) {
  if (num_in_flight_ == 0 || num_new < 2) {
    return;
  }
  for (ScheduledRow& later : in_flight(0).rows) {
    if (later.follows == row) {
      later.first_position += num_new - 1;
      return;
    }
  }
}

void EngineCore::apply(const ScheduledRow& row, const BatchRow& planned, RowResult& result) {
  const auto live = live_.find(row.sequence);
  if (live == live_.end()) {
    return;  // it ended after the row was planned
  }
  LiveRequest& request = *live->second;
  Generation& generation = request.generation;
  if (result.nan_logits) {
    metrics_.nan_logits.add();
    end(row.sequence,
        FinishReason::kError,
        {StatusCode::kInternal,
         "the model's logits are not finite, or leave no token to choose",
         {},
         {}});
    return;
  }
  if (planned.input_logprobs_from >= 0) {
    generation.keep_prompt_logprobs(std::move(result.input_logprobs));
  }
  if (planned.choices_from >= 0) {
    generation.keep_choices(std::move(result.choices));
  }
  OutputEvent event;
  if (planned.sampling_index < 0) {
    generation.settle_choices(row.first_position + row.num_tokens);
    scheduler_->settle(row, row.num_tokens);
    if (row.completes_prompt) {
      generation.finish_prompt_only(event);
      deliver(request, std::move(event));
    }
    return;
  }
  const int32_t num_drafted = result.num_drafted;
  const auto num_stood = static_cast<int32_t>(result.ids.size());
  if (drafts_.drafts(row.sequence) && row.kind != RowKind::kPrefill && num_stood > 0) {
    drafts_.note(row.sequence, num_drafted, num_stood - 1);
    if (draft_metrics_ != nullptr) {
      draft_metrics_->note(num_drafted, num_stood - 1);
    }
  }
  const int32_t num_before = generation.num_generated();
  const bool ended = generation.accept(std::move(result), event);
  const int32_t num_new = generation.num_generated() - num_before;
  ++num_draws_;
  num_drawn_ += num_new;
  count_tokens(request, num_new);
  // A row's own last known token has run; of what it drew, all but the last.
  scheduler_->settle(row, row.kind == RowKind::kPrefill ? row.num_tokens : std::max(num_new, 1));
  if (!ended) {
    scheduler_->accept(row.sequence, num_new);
  }
  deliver(request, std::move(event));
}

void EngineCore::turn() {
  time_.start();
  const bool one_runs = num_in_flight_ > 0;
  if (!is_paused_ && (overlap_ || !one_runs)) {
    start_step();
  }
  if (num_in_flight_ > 0 && (one_runs || !overlap_)) {
    take_result();
  }
  time_.pause();
}

void EngineCore::start_step() {
  const bool one_runs = num_in_flight_ > 0;
  for (SequenceId id = scheduler_->prepare(one_runs); id.valid();
       id = scheduler_->prepare(one_runs)) {
    end(id,
        FinishReason::kError,
        {StatusCode::kResourceExhausted,
         fmt::format("the cache holds {} tokens in all, too few for this request",
                     num_total_tokens_),
         {},
         {}});
  }
  StepInFlight& step = in_flight(num_in_flight_);
  scheduler_->limit_prefill_beside_decode(pace_.limit());
  scheduler_->plan(step.rows);
  if (step.rows.empty() && !scheduler_->flushes()) {
    return;  // all were ended just now, or wait for what runs
  }
  step.ticket = scheduler_->commit(step.rows);
  build(step);
  worker_.submit(step.builder.plan(), step.builder.masks());
  ++num_in_flight_;
}

void EngineCore::build(StepInFlight& step) {
  step.builder.begin(num_steps_ + num_in_flight_);
  const EnginePoint start = now_();
  step.begun = start;
  step.num_prompt_tokens = 0;
  int64_t decode_tokens = 0;
  for (const ScheduledRow& row : step.rows) {
    LiveRequest& request = find(row.sequence);
    step.builder.add(row, request.generation, drafts_.drafts(row.sequence));
    if (row.begins) {
      request.generation.begin(row.first_position);
      metrics_.queue_time.observe(seconds(request.arrived, start));
      metrics_.cached_tokens.add(row.first_position);
    }
    if (row.kind == RowKind::kPrefill) {
      step.num_prompt_tokens += row.num_tokens;
    } else {
      decode_tokens += row.first_position + row.num_tokens;
    }
  }
  metrics_.prompt_tokens.add(step.num_prompt_tokens);
  metrics_.decode_sum_seq_lens.set(static_cast<double>(decode_tokens));
  scheduler_->take_cache_work(work_);
  step.builder.add_cache_work(work_);
}

void EngineCore::take_result() {
  time_.pause();
  StepResult result = worker_.wait();
  time_.start();
  StepInFlight& step = in_flight(0);
  const BatchPlan& plan = step.builder.plan();
  if (result.step != plan.step || result.rows.size() != plan.rows.size()) {
    throw Error(fmt::format("the executor answered step {} with {} rows to step {} with {} rows",
                            result.step,
                            result.rows.size(),
                            plan.step,
                            plan.rows.size()));
  }
  ++num_steps_;
  --num_in_flight_;
  const EnginePoint ended = now_();
  step_s_ += seconds(step.begun, ended);
  if (!step.rows.empty()) {
    pace_.observe(seconds(step.begun, ended), step.num_prompt_tokens);
  }
  if (num_in_flight_ > 0) {
    in_flight(0).begun = ended;
  }
  scheduler_->finish_step(step.ticket, plan);
  for (size_t i = 0; i < step.rows.size(); ++i) {
    move_followers(static_cast<int32_t>(i), static_cast<int32_t>(result.rows[i].ids.size()));
    apply(step.rows[i], plan.rows[i], result.rows[i]);
  }
  measure_throughput(now_());
}

void EngineCore::settle_down() {
  try {
    while (worker_.num_in_flight() > 0) {
      worker_.wait();
    }
  } catch (const std::exception& e) {
    // The worker has ended. Nobody waits for these results; what is left is to give pages back.
    log::warn("engine", "steps lost message=\"{}\"", e.what());
  }
  for (; num_in_flight_ > 0; --num_in_flight_, ++num_steps_) {
    StepInFlight& step = in_flight(0);
    scheduler_->finish_step(step.ticket, step.builder.plan());
  }
}

void EngineCore::measure_throughput(EnginePoint now) {
  const double elapsed = seconds(throughput_since_, now);
  if (elapsed > 0.0 && (elapsed >= kThroughputWindow || live_.empty())) {
    metrics_.gen_throughput.set(static_cast<double>(throughput_tokens_) / elapsed);
  }
  if (elapsed >= kThroughputWindow || live_.empty()) {
    throughput_since_ = now;
    throughput_tokens_ = 0;
  }
}

void EngineCore::report() {
  const auto used = static_cast<double>(scheduler_->num_used_tokens());
  metrics_.num_running.set(scheduler_->num_running());
  metrics_.num_queued.set(scheduler_->num_waiting());
  metrics_.num_used_tokens.set(used);
  metrics_.token_usage.set(used / static_cast<double>(num_total_tokens_));
  metrics_.num_paused.set(is_paused_ ? static_cast<double>(live_.size()) : 0.0);
  metrics_.num_retracted.add(static_cast<double>(scheduler_->num_preemptions() - num_retracted_));
  num_retracted_ = scheduler_->num_preemptions();
  if (cache_ != nullptr && cache_->stats().prompt_tokens > 0) {
    metrics_.cache_hit_rate.set(static_cast<double>(cache_->stats().cached_tokens) /
                                static_cast<double>(cache_->stats().prompt_tokens));
  }
  metrics_.utilization.set(static_cast<double>(scheduler_->num_running()) /
                           scheduler_->config().num_slots);
}

}  // namespace baleen::engine
