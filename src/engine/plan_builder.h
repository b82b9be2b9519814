#pragma once
// Turns scheduled rows into a BatchPlan: token ids, sampling parameters, resets. Keeps the capacity
// of every list between steps. Owned by the engine, used on its thread; one per step in flight.
//
//   builder.begin(step);
//   builder.add(row, generation);   // in the order of the schedule
//   executor.submit(builder.plan(), builder.masks());

#include <cstdint>
#include <vector>

#include "engine/batch_plan.h"
#include "engine/executor.h"
#include "engine/generation.h"
#include "engine/scheduler.h"

namespace baleen::engine {

class PlanBuilder {
 public:
  /// `vocab_size`: bits of a mask.
  PlanBuilder(const SchedulerConfig& config, int64_t vocab_size);

  void begin(int64_t step);
  /// `drafts`: the draft layer runs for the sequence.
  void add(const ScheduledRow& row, const Generation& generation, bool drafts);
  /// Behind the last row: takes the lists over.
  void add_cache_work(CacheWork& work);
  const BatchPlan& plan() const { return plan_; }
  /// The masks of the plan, made with it; valid until the next begin().
  MaskProvider masks() const;

 private:
  SamplingRow& add_sampling();

  BatchPlan plan_;
  const size_t mask_words_;
  std::vector<uint32_t> masks_;     // of the rows that have one, mask_words_ each
  size_t num_sampling_ = 0;         // of the step; sampling rows of the one before lie behind
  std::vector<SamplingRow> spare_;  // rows of earlier steps, for their capacity
};

}  // namespace baleen::engine
