#pragma once
// Decides which tokens of which sequences run in the next step. Knows counts and slots only: no
// text, no tokens, no threads, no clock. Owned by the engine, used on its thread.
//
// Rules: every decoding sequence has a row in every step, first in the plan; then the prompts under
// way, then new ones, both in order of arrival, each with at most max_prefill_chunk tokens, until
// the step is full or no slot is free. Because a step holds at least one token per slot, every
// admitted sequence moves forward in every step.
//
//   scheduler.plan(rows);     // changes nothing
//   scheduler.commit(rows);   // cannot fail; leases slots, advances prompts
//   scheduler.accept(id, 1);  // a token came
//   scheduler.remove(id);     // ended or aborted, in any state; its slot is free at once

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "base/strong_id.h"
#include "engine/batch_plan.h"
#include "engine/sequence_state.h"
#include "engine/slot_pool.h"

namespace baleen::engine {

/// Number of a sequence in order of arrival.
using SequenceId = StrongId<struct SequenceIdTag, int64_t>;

struct SchedulerConfig {
  int32_t num_slots = 64;           // sequences that run at a time
  int32_t max_step_tokens = 2048;   // >= num_slots
  int32_t max_prefill_chunk = 512;  // >= 1

  /// Throws ConfigError naming the field.
  void validate() const;
};

struct ScheduledRow {
  SequenceId sequence;
  RequestSlot slot;  // of a row that begins: the slot that commit() leases
  RowKind kind = RowKind::kDecode;
  int32_t first_position = 0;
  int32_t num_tokens = 0;
  bool begins = false;            // first row of its sequence: leaves the queue, resets the slot
  bool completes_prompt = false;  // last part of a prompt
};

class Scheduler {
 public:
  explicit Scheduler(SchedulerConfig config);

  /// Puts a sequence at the end of the queue. Ids ascend. The caller bounds the queue.
  void enqueue(SequenceId id, int32_t num_prompt_tokens);
  /// Fills `rows` with the next step; empty when nothing can run.
  void plan(std::vector<ScheduledRow>& rows) const;
  /// Applies the latest plan; nothing may have changed since plan().
  void commit(const std::vector<ScheduledRow>& rows);
  /// A decoding sequence got `num_tokens` more tokens.
  void accept(SequenceId id, int32_t num_tokens);
  /// Forgets a sequence and frees its slot.
  void remove(SequenceId id);

  int32_t num_waiting() const { return static_cast<int32_t>(waiting_.size()); }
  int32_t num_running() const { return static_cast<int32_t>(running_.size()); }
  int64_t num_used_tokens() const;  // tokens of the running sequences that have run
  /// Oldest waiting sequence, invalid when none waits.
  SequenceId front_of_queue() const;
  const SequenceState& state(SequenceId id) const;
  const SchedulerConfig& config() const { return config_; }
  /// Aborts when an invariant does not hold; for tests and idle moments.
  void check_invariants() const;

 private:
  struct Sequence {
    int32_t num_prompt_tokens = 0;
    SequenceState state;
  };
  Sequence& find(SequenceId id);
  const Sequence& find(SequenceId id) const;

  SchedulerConfig config_;
  SlotPool slots_;  // outlives the leases in sequences_
  std::unordered_map<SequenceId, Sequence> sequences_;
  std::deque<SequenceId> waiting_;   // in order of arrival
  std::vector<SequenceId> running_;  // prefilling and decoding, in order of arrival
};

}  // namespace baleen::engine
