#include "engine/engine_core.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/request_limits.h"

namespace baleen::engine {
namespace {

int64_t token_capacity(const ExecutorCapacity& capacity) {
  return capacity.cache ? cached_tokens_at_most(capacity)
                        : capacity.num_slots * capacity.max_context;
}

}  // namespace

EngineCore::EngineCore(const SchedulerConfig& config,
                       const ExecutorCapacity& capacity,
                       Executor& executor,
                       EngineMetrics& metrics,
                       std::function<EnginePoint()> now,
                       const CoreOptions& options)
    : executor_(executor),
      cache_(capacity.cache
                 ? std::make_unique<cache::SequenceCache>(*capacity.cache, executor.page_observer())
                 : nullptr),
      scheduler_(std::make_unique<Scheduler>(
          config, static_cast<const SequenceKeys&>(*this), cache_.get())),
      drafts_(options.drafts),
      draft_metrics_(options.draft_metrics),
      steps_{StepInFlight(config, capacity), StepInFlight(config, capacity)},
      metrics_(metrics),
      now_(std::move(now)),
      by_slot_(static_cast<size_t>(config.num_slots), nullptr),
      overlap_(options.overlap),
      step_patience_(options.step_patience),
      on_late_step_(options.on_late_step),
      pace_(options.decode_interval_s, config.max_prefill_chunk),
      weight_version_(std::make_shared<const std::string>(options.weight_version)),
      token_routes_(executor.token_routes()),
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
  key.drafts = live_.at(id)->drafts.drafts();
  key.space.weight_version = weight_epoch_;
  return key;
}

/// The request of a row, null if it has ended since.
LiveRequest* EngineCore::holder(const ScheduledRow& row) const {
  LiveRequest* request = by_slot_[static_cast<size_t>(row.slot.value())];
  return request != nullptr && request->sequence == row.sequence ? request : nullptr;
}

bool EngineCore::can_run_ahead(SequenceId, RequestSlot slot, int32_t most) const {
  return by_slot_[static_cast<size_t>(slot.value())]->generation.can_run_ahead(most);
}

int32_t EngineCore::num_drafts(const ScheduledRow& row, int32_t num_rows) const {
  const LiveRequest& request = *by_slot_[static_cast<size_t>(row.slot.value())];
  return request.drafts.drafts()
             ? std::min(drafts_.depth(request.drafts, num_rows),
                        request.generation.most_drafts(row.follows >= 0 ? 1 : 0))
             : 0;
}

void EngineCore::add(std::unique_ptr<LiveRequest> request) {
  if (live_.empty()) {
    throughput_since_ = now_();  // idle time does not count
  }
  const SequenceId id = request->sequence;
  scheduler_->enqueue(id, request->generation.num_prompt_tokens(), request->generation.place());
  request->drafts = drafts_.begin(request->generation.draft_limit());
  live_.emplace(id, std::move(request));
}

void EngineCore::abort(SequenceId id) {
  if (live_.contains(id)) {
    end(id, FinishReason::kAbort, {StatusCode::kCancelled, "the request was aborted", {}, {}});
  }
}

void EngineCore::pause(PauseMode mode) {
  pause_wanted_ = true;
  hold(mode);
}

void EngineCore::hold(PauseMode mode) {
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

void EngineCore::leave_slot(const LiveRequest& request) {
  if (request.slot.valid() && by_slot_[static_cast<size_t>(request.slot.value())] == &request) {
    by_slot_[static_cast<size_t>(request.slot.value())] = nullptr;
  }
}

/// Rows of the step in flight were planned as if the row before gave a single token.
void EngineCore::move_followers(const StepResult& result) {
  if (num_in_flight_ == 0) {
    return;
  }
  for (ScheduledRow& later : in_flight(0).rows) {
    if (later.follows >= 0) {
      const auto given =
          static_cast<int32_t>(result.rows[static_cast<size_t>(later.follows)].ids.size());
      const int32_t by = std::max(given - 1, 0);
      if (cache_ != nullptr && by > later.most_shift) {
        throw Error(fmt::format(
            "the executor gave {} tokens for a row with {} drafts", given, later.most_shift));
      }
      scheduler_->move(later, by);
    }
  }
}

void EngineCore::apply(const ScheduledRow& row,
                       const BatchRow& planned,
                       RowResult& result,
                       EnginePoint now) {
  LiveRequest* live = holder(row);
  if (live == nullptr) {
    return;  // it ended after the row was planned
  }
  LiveRequest& request = *live;
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
    generation.keep_choices(std::move(result.choices), row.first_position);
  }
  if (planned.sampling_index < 0) {
    generation.settle_choices(row.first_position + row.num_tokens);
    scheduler_->settle(row, row.num_tokens, generation.tokens());
    if (row.completes_prompt) {
      Delivery& delivery = new_delivery();
      generation.finish_prompt_only(delivery.event);
      deliver(request, delivery);
    }
    return;
  }
  const int32_t num_drafted = result.num_drafted;
  const auto num_stood = static_cast<int32_t>(result.ids.size());
  if (request.drafts.drafts() && row.kind != RowKind::kPrefill && num_stood > 0) {
    drafts_.note(request.drafts, num_drafted, num_stood - 1);
    if (draft_metrics_ != nullptr) {
      draft_metrics_->note(num_drafted, num_stood - 1);
    }
  }
  Delivery& delivery = new_delivery();
  const int32_t num_before = generation.num_generated();
  const bool ended = generation.accept(std::move(result), delivery.event);
  const int32_t num_new = generation.num_generated() - num_before;
  ++num_draws_;
  num_drawn_ += num_new;
  count_tokens(request, num_new, now);
  // A row's own last known token has run; of what it drew, all but the last.
  scheduler_->settle(row,
                     row.kind == RowKind::kPrefill ? row.num_tokens : std::max(num_new, 1),
                     generation.tokens());
  if (!ended) {
    scheduler_->accept(row, num_new);
  }
  deliver(request, delivery);
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
    if (row.begins) {
      LiveRequest& beginning = find(row.sequence);
      leave_slot(beginning);  // the one before a preemption
      beginning.slot = row.slot;
      by_slot_[static_cast<size_t>(row.slot.value())] = &beginning;
    }
    LiveRequest& request = *holder(row);
    step.builder.add(row, request.generation, request.drafts.drafts());
    if (row.begins) {
      request.generation.begin(row.first_position);
      metrics_.queue_time.observe(seconds_between(request.arrived, start));
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

StepResult& EngineCore::wait_for_step() {
  if (step_patience_.count() <= 0) {
    return worker_.wait();
  }
  StepResult* result = worker_.wait_for(step_patience_);
  if (result != nullptr) {
    return *result;
  }
  std::chrono::nanoseconds waited = step_patience_;
  for (; result == nullptr; waited += step_patience_) {
    on_late_step_(waited);
    result = worker_.wait_for(step_patience_);
  }
  on_late_step_(std::chrono::nanoseconds(0));
  return *result;
}

void EngineCore::take_result() {
  time_.pause();
  StepResult& result = wait_for_step();
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
  step_s_ += seconds_between(step.begun, ended);
  if (!step.rows.empty()) {
    pace_.observe(seconds_between(step.begun, ended), step.num_prompt_tokens);
  }
  if (num_in_flight_ > 0) {
    in_flight(0).begun = ended;
  }
  scheduler_->finish_step(step.ticket, plan);
  move_followers(result);
  for (size_t i = 0; i < step.rows.size(); ++i) {
    apply(step.rows[i], plan.rows[i], result.rows[i], ended);
  }
  publish_counts();
  measure_throughput(ended);
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

}  // namespace baleen::engine
