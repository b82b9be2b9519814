#pragma once
// Decides which tokens of which sequences run in the next step, and holds their slots and pages.
// Knows counts, slots and pages: no text, no threads, no clock; token ids only to hand them to the
// cache. Owned by the engine, used on its thread.
//
// Rules: every decoding sequence has a row in every step, first in the plan; then the prompts under
// way, then new ones, both in order of arrival, each with at most max_prefill_chunk tokens, until
// the step is full, no slot is free or pages are short. Because a step holds at least one token per
// slot, every admitted sequence moves forward in every step while pages last. When they do not, the
// sequence that arrived last gives its pages up and waits first in the queue; what it computed
// stays in the cache as long as nobody needs the room.
//
//   scheduler.prepare();          // preempts and admits; each is whole or does not happen
//   scheduler.plan(rows);         // changes nothing
//   scheduler.commit(rows);       // takes pages, advances prompts
//   scheduler.finish_step(plan);  // the executor is done with it
//   scheduler.settle(row);        // its tokens are final
//   scheduler.accept(id, 1);      // a token came
//   scheduler.remove(id, how);    // in any state; its slot is free at once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/strong_id.h"
#include "cache/sequence_cache.h"
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

/// What the cache must know of a sequence: all its token ids, and with whom it may share.
class SequenceKeys {
 public:
  virtual ~SequenceKeys() = default;
  virtual cache::SequenceKey key(SequenceId id) const = 0;
};

struct ScheduledRow {
  SequenceId sequence;
  RequestSlot slot;
  RowKind kind = RowKind::kDecode;
  int32_t first_position = 0;
  int32_t num_tokens = 0;
  bool begins = false;            // first row since the sequence got its slot: resets the slot
  bool completes_prompt = false;  // last part of a prompt
};

enum class Ending : uint8_t {
  kFinished,  // later sequences may continue where it ended
  kAborted,
};

/// Lists of a BatchPlan that come from the cache.
struct CacheWork {
  std::vector<cache::CaptureJob> end_captures;
  std::vector<cache::PageChange> pages;
  std::vector<cache::ResumeCopy> copies;
  std::vector<cache::CaptureJob> captures;
};

class Scheduler {
 public:
  /// Without pages: executors that keep their state per slot.
  explicit Scheduler(SchedulerConfig config);
  /// `cache` and `keys` outlive the scheduler.
  Scheduler(SchedulerConfig config, cache::SequenceCache& cache, const SequenceKeys& keys);

  /// Puts a sequence at the end of the queue. Ids ascend. The caller bounds the queue.
  void enqueue(SequenceId id, int32_t num_prompt_tokens);
  /// Makes room for the next step: preempts running sequences if pages are short, admits waiting
  /// ones if there is room. A sequence that has the cache to itself and still finds no room is
  /// returned: it can never go on; invalid if there is none.
  SequenceId prepare();
  /// Resume points of ended sequences wait to be written.
  bool has_end_captures() const { return !work_.end_captures.empty(); }
  /// The next step has no rows: it carries out what the cache wants done, to free pages.
  bool flushes() const { return flushes_; }
  /// Fills `rows` with the next step; empty when nothing can run.
  void plan(std::vector<ScheduledRow>& rows) const;
  /// Applies the latest plan; nothing may have changed since plan(). Takes out of `rows` those
  /// whose pages are still held by what ended just before; they run in the next step.
  void commit(std::vector<ScheduledRow>& rows);
  /// Moves what the cache wants done in the committed step into `work`, whose lists are replaced.
  void take_cache_work(CacheWork& work);
  /// The executor has done the committed step, whose plan held the cache's work.
  void finish_step(const BatchPlan& plan);
  /// The tokens of a committed row are final; its sequence's key holds them, and the next if known.
  void settle(const ScheduledRow& row);
  /// A decoding sequence got `num_tokens` more tokens.
  void accept(SequenceId id, int32_t num_tokens);
  /// Forgets a sequence and frees its slot.
  void remove(SequenceId id, Ending ending = Ending::kAborted);

  int32_t num_waiting() const { return static_cast<int32_t>(waiting_.size()); }
  int32_t num_running() const { return static_cast<int32_t>(running_.size()); }
  int64_t num_used_tokens() const;  // tokens of the running sequences that have run
  int64_t num_preemptions() const { return num_preemptions_; }
  /// Oldest waiting sequence, invalid when none waits.
  SequenceId front_of_queue() const;
  const SequenceState& state(SequenceId id) const;
  const SchedulerConfig& config() const { return config_; }
  /// Aborts when an invariant does not hold; for tests and idle moments.
  void check_invariants() const;

 private:
  struct Sequence {
    int32_t num_prompt_tokens = 0;  // with those generated before a preemption
    SequenceState state;
  };
  /// Pages that a plan has not given away yet.
  struct Room {
    int32_t full = 0;
    int32_t swa = 0;
  };

  Sequence& find(SequenceId id);
  const Sequence& find(SequenceId id) const;
  Room room() const;
  int32_t pages_of_decoding() const;
  bool decodes() const;
  int32_t fitting_tokens(const Prefilling& prefilling, int32_t num_tokens, Room& room) const;
  void take_copy(RequestSlot slot, std::vector<cache::ResumeCopy>* target);
  void preempt_last();
  bool admit_front();
  bool is_full() const;

  SchedulerConfig config_;
  cache::SequenceCache* cache_ = nullptr;
  const SequenceKeys* keys_ = nullptr;
  SlotPool slots_;  // outlives the leases in sequences_
  std::unordered_map<SequenceId, Sequence> sequences_;
  std::deque<SequenceId> waiting_;                 // preempted ones first, then in order of arrival
  std::vector<SequenceId> running_;                // prefilling and decoding, in order of admission
  CacheWork work_;                                 // of the next step
  std::vector<cache::ResumeCopy> waiting_copies_;  // of sequences whose first row is to come
  cache::CacheTicket step_;                        // of the committed step, while it runs
  int64_t num_preemptions_ = 0;
  bool flushes_ = false;
  mutable std::vector<ScheduledRow> scratch_;
};

}  // namespace baleen::engine
