#pragma once
// The engine without its mail: live requests, scheduler and executor, advanced one turn at a time.
// Owned by Engine, used on the engine's thread alone. With overlap a turn plans the next step while
// the one before runs, hands it over, and takes the result of the one before: what ended there has
// a row too many in the step under way, which is thrown away when its result comes.
//
//   core.add(std::move(request));
//   if (core.has_work()) core.turn();    // throws when the executor fails
//   for (Delivery& d : core.deliveries()) d.sink->on_event(std::move(d.event));
//   core.clear_deliveries();

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "cache/sequence_cache.h"
#include "engine/decode_pace.h"
#include "engine/draft_metrics.h"
#include "engine/draft_planner.h"
#include "engine/engine_metrics.h"
#include "engine/executor.h"
#include "engine/live_request.h"
#include "engine/pause_mode.h"
#include "engine/plan_builder.h"
#include "engine/scheduler.h"
#include "engine/step_worker.h"
#include "engine/thread_time.h"

namespace baleen::engine {

/// An event to hand over. The request is already forgotten when `event.finish` is set.
struct Delivery {
  OutputSink* sink = nullptr;  // the request's, or `last_hold`
  OutputEvent event;
  std::shared_ptr<OutputSink> last_hold;  // with the last event, the sink
  std::string finished_id;                // empty while the request goes on
};

struct CoreOptions {
  bool overlap = true;                    // plan a step while the one before runs
  double decode_interval_s = 0.0;         // wished between two tokens of a sequence; 0: none
  DraftPlannerConfig drafts{};            // none by default
  DraftMetrics* draft_metrics = nullptr;  // outlives the core; null: not counted
  // Called on the engine's thread each time a step has been waited for so long again, with the time
  // so far, and with 0 when it came after all. No patience: never called.
  std::chrono::nanoseconds step_patience{0};
  std::function<void(std::chrono::nanoseconds waited)> on_late_step = {};
  std::string weight_version = "default";
};

class EngineCore final : private SequenceKeys {
 public:
  EngineCore(const SchedulerConfig& config,
             const ExecutorCapacity& capacity,
             Executor& executor,
             EngineMetrics& metrics,
             std::function<EnginePoint()> now,
             const CoreOptions& options = {});

  void add(std::unique_ptr<LiveRequest> request);
  /// Ends a request with kAbort; does nothing when it is unknown.
  void abort(SequenceId id);
  /// Ends the requests that were never admitted within `queue_s` of their arrival, and those that
  /// have not ended within `request_s`; 0: no limit.
  void expire(double queue_s, double request_s);
  /// Ends every request.
  void end_all(FinishReason reason, const Status& error);

  bool has_work() const {
    return is_paused_ ? num_in_flight_ > 0
                      : !live_.empty() || scheduler_->has_end_captures() || num_in_flight_ > 0;
  }
  /// Starts the next step if something can run, and takes the result of the one before.
  void turn();
  /// Takes the results of the steps in flight and starts no more until resume(). May be called
  /// again with another mode.
  void pause(PauseMode mode);
  Status resume();
  bool is_paused() const { return is_paused_; }
  /// Gives up all that the cache keeps for later requests. False while running requests use it.
  bool flush_cache();
  /// Orders of the same names in Engine; the program that they come from waits for the answer.
  Status update_weights(const WeightUpdate& update);
  Status release_memory(MemoryParts parts);
  Status resume_memory(MemoryParts parts);
  void name_weights(std::string version);
  const std::shared_ptr<const std::string>& weight_version() const { return weight_version_; }
  MemoryParts released() const { return released_; }
  /// Why there are no weights after an update that failed half-way; empty: there are.
  const std::string& lost_weights() const { return lost_weights_; }
  /// Waits for the steps in flight and throws their results away. The requests must have ended.
  void settle_down();

  /// Events of all that happened since the caller last cleared the list.
  std::span<Delivery> deliveries() { return std::span(deliveries_).first(num_deliveries_); }
  /// Clears the list; later events use the memory that the sinks left in these.
  void clear_deliveries();
  const Scheduler& scheduler() const { return *scheduler_; }
  /// Null when the executor keeps its state per slot.
  const cache::SequenceCache* cache() const { return cache_.get(); }
  cache::SequenceCache* cache() { return cache_.get(); }
  int64_t num_steps() const { return num_steps_; }
  int64_t num_draws() const { return num_draws_; }
  int64_t num_drawn() const { return num_drawn_; }
  /// Processor time of turn(), the executor's excluded.
  double scheduling_s() const { return time_.seconds(); }
  /// Time that steps ran in all.
  double step_s() const { return step_s_; }
  /// Sets the gauges.
  void report();

 private:
  struct StepInFlight {
    StepInFlight(const SchedulerConfig& config, const ExecutorCapacity& capacity)
        : builder(config, capacity.vocab_size) {}
    PlanBuilder builder;
    std::vector<ScheduledRow> rows;
    cache::CacheTicket ticket;
    EnginePoint begun;  // when it could begin
    int32_t num_prompt_tokens = 0;
  };

  cache::SequenceKey key(SequenceId id) const override;
  bool can_run_ahead(SequenceId id, RequestSlot slot, int32_t most) const override;
  int32_t num_drafts(const ScheduledRow& row, int32_t num_rows) const override;
  StepInFlight& in_flight(int32_t index) {
    return steps_[static_cast<size_t>((num_steps_ + index) % 2)];
  }
  void start_step();
  void build(StepInFlight& step);
  void take_result();
  StepResult& wait_for_step();
  void move_followers(const StepResult& result);
  LiveRequest& find(SequenceId id) { return *live_.at(id); }
  LiveRequest* holder(const ScheduledRow& row) const;
  void leave_slot(const LiveRequest& request);
  Delivery& new_delivery();
  void apply(const ScheduledRow& row, const BatchRow& planned, RowResult& result, EnginePoint now);
  void end(SequenceId id, FinishReason reason, Status error);
  void count_tokens(LiveRequest& request, int32_t num_new, EnginePoint now);
  void publish_counts();
  void deliver(LiveRequest& request, Delivery& delivery);
  void measure_throughput(EnginePoint now);
  void hold(PauseMode mode);
  void go_on();                // unless the client or released memory say otherwise
  bool held_requests() const;  // paused, and their state is kept

  Executor& executor_;
  std::unique_ptr<cache::SequenceCache> cache_;
  std::unique_ptr<Scheduler> scheduler_;  // its leases end before the cache
  DraftPlanner drafts_;
  DraftMetrics* draft_metrics_;
  std::array<StepInFlight, 2> steps_;  // step s at s modulo 2
  CacheWork work_;
  EngineMetrics& metrics_;
  std::function<EnginePoint()> now_;
  std::unordered_map<SequenceId, std::unique_ptr<LiveRequest>> live_;
  std::vector<LiveRequest*> by_slot_;  // of live_, who began in the slot last; null: has ended
  std::vector<Delivery> deliveries_;   // the first num_deliveries_; behind them empty ones
  size_t num_deliveries_ = 0;
  const bool overlap_;
  const std::chrono::nanoseconds step_patience_;
  std::function<void(std::chrono::nanoseconds)> on_late_step_;
  DecodePace pace_;
  int64_t num_steps_ = 0;  // done
  int32_t num_in_flight_ = 0;
  bool is_paused_ = false;
  bool pause_wanted_ = false;  // by the client
  MemoryParts released_;
  std::string lost_weights_;
  std::shared_ptr<const std::string> weight_version_;
  int64_t weight_epoch_ = 0;  // updates: what other weights computed is never reused
  std::shared_ptr<const cache::TokenRoutes> token_routes_;  // with requests that ended
  int64_t num_draws_ = 0;
  int64_t num_drawn_ = 0;
  int64_t num_retracted_ = 0;  // reported
  struct TokenInterval {
    double seconds = 0.0;
    int64_t num_tokens = 0;
  };
  std::vector<TokenInterval> intervals_;  // of the step, few different ones; not published yet
  int64_t num_new_tokens_ = 0;            // of the step, not published yet
  double step_s_ = 0.0;
  ThreadTime time_;
  int64_t num_total_tokens_;  // capacity
  EnginePoint throughput_since_;
  int64_t throughput_tokens_ = 0;
  StepWorker worker_;  // last: while it lives, plans are in use
};

}  // namespace baleen::engine
