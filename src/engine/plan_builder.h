#pragma once
// Turns scheduled rows into a BatchPlan: token ids, sampling parameters, resets. Keeps the capacity
// of every list between steps. Owned by the engine, used on its thread.
//
//   builder.begin(step);
//   builder.add(row, generation);   // in the order of the schedule
//   executor.submit(builder.plan(), masks);

#include <cstdint>
#include <vector>

#include "engine/batch_plan.h"
#include "engine/generation.h"
#include "engine/scheduler.h"

namespace baleen::engine {

class PlanBuilder {
 public:
  explicit PlanBuilder(const SchedulerConfig& config);

  void begin(int64_t step);
  void add(const ScheduledRow& row, const Generation& generation);
  /// Takes the lists over.
  void add_cache_work(CacheWork& work);
  const BatchPlan& plan() const { return plan_; }

 private:
  SamplingRow& add_sampling();

  BatchPlan plan_;
  std::vector<SamplingRow> spare_;  // rows of earlier steps, for their capacity
};

}  // namespace baleen::engine
