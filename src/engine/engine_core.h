#pragma once
// The engine without its threads: live requests, scheduler and executor, advanced one step at a
// time. Owned by Engine, used on the engine's thread alone.
//
//   core.add(std::move(request));
//   if (core.has_work()) core.step();    // throws when the executor fails
//   for (Delivery& d : core.deliveries()) d.sink->on_event(std::move(d.event));

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "cache/sequence_cache.h"
#include "engine/engine_metrics.h"
#include "engine/executor.h"
#include "engine/live_request.h"
#include "engine/plan_builder.h"
#include "engine/scheduler.h"

namespace baleen::engine {

/// An event to hand over. The request is already forgotten when `event.finish` is set.
struct Delivery {
  std::shared_ptr<OutputSink> sink;
  OutputEvent event;
  std::string finished_id;  // empty while the request goes on
};

class EngineCore final : private SequenceKeys {
 public:
  EngineCore(const SchedulerConfig& config,
             const ExecutorCapacity& capacity,
             Executor& executor,
             EngineMetrics& metrics,
             std::function<EnginePoint()> now);

  void add(std::unique_ptr<LiveRequest> request);
  /// Ends a request with kAbort; does nothing when it is unknown.
  void abort(SequenceId id);
  /// Ends the requests that have waited longer than `timeout_s`.
  void expire_queue(double timeout_s);
  /// Ends every request.
  void end_all(FinishReason reason, const Status& error);

  bool has_work() const { return !live_.empty() || scheduler_->has_end_captures(); }
  /// Plans, commits and runs one step and applies its result.
  void step();

  /// Events of all that happened since the caller last cleared the list.
  std::vector<Delivery>& deliveries() { return deliveries_; }
  const Scheduler& scheduler() const { return *scheduler_; }
  /// Null when the executor keeps its state per slot.
  const cache::SequenceCache* cache() const { return cache_.get(); }
  int64_t num_steps() const { return num_steps_; }
  /// Sets the gauges.
  void report();

 private:
  cache::SequenceKey key(SequenceId id) const override;
  LiveRequest& find(SequenceId id) { return *live_.at(id); }
  void apply(const ScheduledRow& row, const BatchRow& planned, RowResult& result);
  void end(SequenceId id, FinishReason reason, Status error);
  void end_stuck_requests();
  void count_tokens(LiveRequest& request, int32_t num_new);
  void deliver(LiveRequest& request, OutputEvent&& event);
  void measure_throughput(EnginePoint now);

  std::unique_ptr<cache::SequenceCache> cache_;
  std::unique_ptr<Scheduler> scheduler_;  // its leases end before the cache
  PlanBuilder builder_;
  CacheWork work_;
  Executor& executor_;
  EngineMetrics& metrics_;
  std::function<EnginePoint()> now_;
  std::unordered_map<SequenceId, std::unique_ptr<LiveRequest>> live_;
  std::vector<ScheduledRow> rows_;
  std::vector<Delivery> deliveries_;
  int64_t num_steps_ = 0;
  int64_t num_total_tokens_;  // capacity
  EnginePoint throughput_since_;
  int64_t throughput_tokens_ = 0;
};

}  // namespace baleen::engine
