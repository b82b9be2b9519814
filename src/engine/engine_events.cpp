#include <algorithm>
#include <utility>
#include <vector>

#include "engine/engine_core.h"

// What leaves the core: events, ends of requests, numbers.

namespace baleen::engine {
namespace {

constexpr double kThroughputWindow = 1.0;  // seconds

}  // namespace

void EngineCore::expire(double queue_s, double request_s) {
  const EnginePoint now = now_();
  if (queue_s > 0.0) {
    for (SequenceId id = scheduler_->oldest_new();
         id.valid() && seconds_between(find(id).arrived, now) > queue_s;
         id = scheduler_->oldest_new()) {
      end(id,
          FinishReason::kError,
          {StatusCode::kUnavailable, "Request queue timeout reached.", {}, {}});
    }
  }
  if (request_s > 0.0) {
    std::vector<SequenceId> late;
    for (const auto& [id, request] : live_) {
      if (seconds_between(request->arrived, now) > request_s) {
        late.push_back(id);
      }
    }
    for (const SequenceId id : late) {
      end(id, FinishReason::kError, {StatusCode::kUnavailable, "Request timeout reached.", {}, {}});
    }
  }
}

void EngineCore::end_all(FinishReason reason, const Status& error) {
  while (!live_.empty()) {
    end(live_.begin()->first, reason, error);
  }
}

void EngineCore::end(SequenceId id, FinishReason reason, Status error) {
  LiveRequest& request = find(id);
  Delivery& delivery = new_delivery();
  request.generation.finish(reason, std::move(error), delivery.event);
  deliver(request, delivery);
}

/// An empty one behind the list, which deliver() takes in. Events are filled in place: they are
/// large, and there are as many in a step as sequences.
Delivery& EngineCore::new_delivery() {
  if (num_deliveries_ == deliveries_.size()) {
    deliveries_.emplace_back();
  }
  OutputEvent& event = deliveries_[num_deliveries_].event;
  event.deltas.clear();
  event.tokens.clear();
  event.prompt_logprobs.clear();
  event.finish.reset();
  return deliveries_[num_deliveries_];
}

void EngineCore::clear_deliveries() {
  for (Delivery& delivery : deliveries()) {
    if (delivery.last_hold != nullptr) {
      delivery.event.finish.reset();
      delivery.last_hold.reset();
      delivery.finished_id.clear();
    }
  }
  num_deliveries_ = 0;
  if (deliveries_.size() > 2 * by_slot_.size()) {  // many ended at once
    deliveries_.resize(by_slot_.size());
  }
}

void EngineCore::deliver(LiveRequest& request, Delivery& delivery) {
  ++num_deliveries_;
  delivery.sink = request.sink.get();
  delivery.event.weight_version = weight_version_;
  if (!delivery.event.finish) {
    return;
  }
  delivery.last_hold = std::move(request.sink);
  FinishInfo& info = *delivery.event.finish;
  info.weight_version = weight_version_;
  if (info.choices) {
    info.token_routes = token_routes_;
  }
  if (info.reason == FinishReason::kAbort) {
    metrics_.num_aborted.add();
  } else {
    metrics_.num_requests.add();
    metrics_.e2e_latency.observe(seconds_between(request.arrived, now_()));
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
  leave_slot(request);
  live_.erase(id);  // `request` ends here
}

void EngineCore::count_tokens(LiveRequest& request, int32_t num_new, EnginePoint now) {
  if (num_new == 0) {
    return;
  }
  if (request.generation.num_generated() == num_new) {
    metrics_.time_to_first_token.observe(seconds_between(request.arrived, now));
  } else {
    // Requests that had a token in the same step before have the same interval.
    const double interval = seconds_between(request.last_token, now) / num_new;
    const auto same =
        std::find_if(intervals_.begin(), intervals_.end(), [&](const TokenInterval& known) {
          return known.seconds == interval;
        });
    if (same != intervals_.end()) {
      same->num_tokens += num_new;
    } else {
      intervals_.push_back({interval, num_new});
    }
  }
  request.last_token = now;
  num_new_tokens_ += num_new;
}

/// What the rows of a step add to the metrics.
void EngineCore::publish_counts() {
  for (const TokenInterval& interval : intervals_) {
    metrics_.inter_token_latency.observe_many(interval.seconds, interval.num_tokens);
  }
  intervals_.clear();
  metrics_.generation_tokens.add(static_cast<double>(num_new_tokens_));
  throughput_tokens_ += num_new_tokens_;
  num_new_tokens_ = 0;
  if (draft_metrics_ != nullptr) {
    draft_metrics_->publish();
  }
}

void EngineCore::measure_throughput(EnginePoint now) {
  const double elapsed = seconds_between(throughput_since_, now);
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
