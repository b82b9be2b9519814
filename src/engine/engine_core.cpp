#include "engine/engine_core.h"

#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"

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
                       std::function<EnginePoint()> now)
    : cache_(capacity.cache
                 ? std::make_unique<cache::SequenceCache>(*capacity.cache, executor.page_observer())
                 : nullptr),
      scheduler_(cache_ ? std::make_unique<Scheduler>(
                              config, *cache_, static_cast<const SequenceKeys&>(*this))
                        : std::make_unique<Scheduler>(config)),
      builder_(config, capacity.vocab_size),
      executor_(executor),
      metrics_(metrics),
      now_(std::move(now)),
      num_total_tokens_(token_capacity(capacity)),
      throughput_since_(now_()) {
  rows_.reserve(static_cast<size_t>(config.num_slots));
  metrics_.max_total_num_tokens.set(static_cast<double>(num_total_tokens_));
}

cache::SequenceKey EngineCore::key(SequenceId id) const {
  const Generation& generation = live_.at(id)->generation;
  cache::SequenceKey key;
  key.ids = generation.tokens();
  // Scores of prompt tokens come from running them.
  key.reuse_limit = generation.wants_prompt_logprobs() ? 0 : -1;
  return key;
}

void EngineCore::add(std::unique_ptr<LiveRequest> request) {
  if (live_.empty()) {
    throughput_since_ = now_();  // idle time does not count
  }
  const SequenceId id = request->sequence;
  scheduler_->enqueue(id, request->generation.num_prompt_tokens());
  live_.emplace(id, std::move(request));
}

void EngineCore::abort(SequenceId id) {
  if (live_.contains(id)) {
    end(id, FinishReason::kAbort, {StatusCode::kCancelled, "the request was aborted", {}, {}});
  }
}

void EngineCore::expire_queue(double timeout_s) {
  const EnginePoint now = now_();
  for (SequenceId id = scheduler_->front_of_queue();
       id.valid() && seconds(find(id).arrived, now) > timeout_s;
       id = scheduler_->front_of_queue()) {
    end(id,
        FinishReason::kError,
        {StatusCode::kUnavailable, "Request queue timeout reached.", {}, {}});
  }
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

void EngineCore::apply(const ScheduledRow& row, const BatchRow& planned, RowResult& result) {
  LiveRequest& request = find(row.sequence);
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
  OutputEvent event;
  if (planned.sampling_index < 0) {
    scheduler_->settle(row);
    if (row.completes_prompt) {
      generation.finish_prompt_only(event);
      deliver(request, std::move(event));
    }
    return;
  }
  const int32_t num_before = generation.num_generated();
  const bool ended = generation.accept(std::move(result), event);
  const int32_t num_new = generation.num_generated() - num_before;
  count_tokens(request, num_new);
  scheduler_->settle(row);
  if (!ended) {
    scheduler_->accept(row.sequence, num_new);
  }
  deliver(request, std::move(event));
}

void EngineCore::end_stuck_requests() {
  for (SequenceId id = scheduler_->prepare(); id.valid(); id = scheduler_->prepare()) {
    end(id,
        FinishReason::kError,
        {StatusCode::kResourceExhausted,
         fmt::format("the cache holds {} tokens in all, too few for this request",
                     num_total_tokens_),
         {},
         {}});
  }
}

void EngineCore::step() {
  end_stuck_requests();
  scheduler_->plan(rows_);
  if (rows_.empty() && !scheduler_->flushes()) {
    return;  // all were ended just now
  }
  scheduler_->commit(rows_);
  builder_.begin(num_steps_);
  const EnginePoint start = now_();
  int64_t decode_tokens = 0;
  for (const ScheduledRow& row : rows_) {
    LiveRequest& request = find(row.sequence);
    builder_.add(row, request.generation);
    if (row.begins) {
      request.generation.begin(row.first_position);
      metrics_.queue_time.observe(seconds(request.arrived, start));
      metrics_.cached_tokens.add(row.first_position);
    }
    if (row.kind == RowKind::kPrefill) {
      metrics_.prompt_tokens.add(row.num_tokens);
    } else {
      decode_tokens += row.first_position + row.num_tokens;
    }
  }
  metrics_.decode_sum_seq_lens.set(static_cast<double>(decode_tokens));
  scheduler_->take_cache_work(work_);
  builder_.add_cache_work(work_);
  report();

  const BatchPlan& plan = builder_.plan();
  const Ticket ticket = executor_.submit(plan, builder_.masks());
  StepResult result = executor_.wait(ticket);
  ++num_steps_;
  if (result.step != plan.step || result.rows.size() != plan.rows.size()) {
    throw Error(fmt::format("the executor answered step {} with {} rows to step {} with {} rows",
                            result.step,
                            result.rows.size(),
                            plan.step,
                            plan.rows.size()));
  }
  scheduler_->finish_step(plan);
  for (size_t i = 0; i < rows_.size(); ++i) {
    apply(rows_[i], plan.rows[i], result.rows[i]);
  }
  measure_throughput(now_());
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
  metrics_.utilization.set(static_cast<double>(scheduler_->num_running()) /
                           scheduler_->config().num_slots);
}

}  // namespace baleen::engine
