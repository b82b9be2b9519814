#pragma once
// Decides which tokens of which sequences run in the next step, and holds their slots and pages.
// Knows counts, slots and pages: no text, no threads, no clock; token ids only to hand them to the
// cache. Owned by the engine, used on its thread.
//
// Rules: every decoding sequence has a row in every step, first in the plan. The rest of the step,
// or what the limit beside decoding sequences leaves of it, is divided among the prompts under way,
// at most max_prefill_chunk tokens each. Waiting sequences are admitted in the queue's order while
// slots and pages last and fewer than max_prefills prompts are under way or the step has tokens
// left. Because a step holds at least one token per slot, every admitted sequence moves forward in
// every step while pages last. When they do not, one of the least priority gives its pages up, of
// those the one admitted last, and waits ahead of the others; what it computed stays in the cache
// as long as nobody needs the room. So does one whose slot a much more important sequence needs.
//
// A step can be planned while the one before runs: a decoding sequence then gets a row for the
// token after one that is not known yet. Where drafts are being verified that row may lie further
// on: it gets pages for the furthest place. What ended in the meantime is found when that row's
// result comes. Sequences are preempted only while nothing runs.
//
//   scheduler.prepare(in_flight);         // preempts and admits; each is whole or does not happen
//   scheduler.plan(rows);                 // changes nothing
//   ticket = scheduler.commit(rows);      // takes pages, advances prompts
//   scheduler.finish_step(ticket, plan);  // the executor is done with it
//   scheduler.move(later, 2);             // two drafts stood before a row of the next step
//   scheduler.settle(row, 1, ids);        // its tokens are final
//   scheduler.accept(row, 1);             // a token came
//   scheduler.remove(id, how);            // in any state; its slot is free at once

#include <cstdint>
#include <limits>
#include <span>
#include <unordered_map>
#include <vector>

#include "cache/sequence_cache.h"
#include "engine/batch_plan.h"
#include "engine/prompt_shares.h"
#include "engine/request_queue.h"
#include "engine/sequence_id.h"
#include "engine/sequence_state.h"
#include "engine/slot_pool.h"

namespace baleen::engine {

struct SchedulerConfig {
  int32_t num_slots = 64;           // sequences that run at a time
  int32_t max_step_tokens = 2048;   // >= num_slots
  int32_t max_prefill_chunk = 512;  // >= 1
  int32_t max_prefills = 8;         // prompts under way before a full step closes the door, >= 1
  // A waiting sequence takes the place of a running one whose priority is lower by more than this;
  // -1: never.
  int32_t preemption_threshold = 10;
  int32_t max_preemptions = 4;  // of one sequence, while there is another to choose; >= 1
  int32_t max_accepted = 1;     // most tokens that a row may give besides its drafts, >= 1

  /// Throws ConfigError naming the field.
  void validate() const;
};

struct ScheduledRow {
  SequenceId sequence;
  RequestSlot slot;
  RowKind kind = RowKind::kDecode;
  int32_t first_position = 0;     // with `follows`: if the row before gives one token
  int32_t most_shift = 0;         // positions by which it may lie further on
  int32_t num_tokens = 0;         // drafts included
  int32_t num_drafts = 0;         // last tokens of a verify row
  int32_t draft_begin = 0;        // see BatchRow; filled by commit()
  int32_t draft_hole = -1;        // the same
  int32_t follows = -1;           // row of the step in flight that draws the first token; -1: known
  bool begins = false;            // first row since the sequence got its slot: resets the slot
  bool completes_prompt = false;  // last part of a prompt

  bool draws() const { return kind != RowKind::kPrefill || completes_prompt; }
  /// Behind the last position that it may write.
  int32_t end() const { return first_position + most_shift + num_tokens; }
};

/// What only the owner of the sequences knows of them.
class SequenceKeys {
 public:
  virtual ~SequenceKeys() = default;
  /// All known token ids, and with whom the cache may share them.
  virtual cache::SequenceKey key(SequenceId id) const = 0;
  /// Whether a row can be planned for the sequence in this slot although between 1 and `most`
  /// tokens before it are not known yet: false where the draw depends on them, or where they end
  /// it for certain.
  virtual bool can_run_ahead(SequenceId id, RequestSlot slot, int32_t most) const = 0;
  /// Drafts worth making in a decoding row, in a step of `num_rows` such rows.
  virtual int32_t num_drafts(const ScheduledRow& row, int32_t num_rows) const = 0;
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
  /// `cache` and `keys` outlive the scheduler. Without a cache there are no pages: for executors
  /// that keep their state per slot.
  Scheduler(SchedulerConfig config, const SequenceKeys& keys, cache::SequenceCache* cache);

  /// Puts a sequence into the queue. Ids ascend. The caller bounds the queue.
  void enqueue(SequenceId id, int32_t num_prompt_tokens, QueuePlace place = {});
  /// Most prompt tokens of a step with decoding sequences, from the next plan on; prompts under way
  /// keep a token each.
  void limit_prefill_beside_decode(int32_t num_tokens) { prefill_limit_ = num_tokens; }
  /// Every running sequence goes back to the queue. Nothing may be in flight.
  void preempt_all();
  /// Makes room for the next step: preempts running sequences if pages are short, admits waiting
  /// ones if there is room. `in_flight`: the step before has not been finished yet. A sequence that
  /// has the cache to itself and still finds no room is returned: it can never go on; invalid if
  /// there is none.
  SequenceId prepare(bool in_flight);
  /// Resume points of ended sequences wait to be written.
  bool has_end_captures() const { return !work_.end_captures.empty(); }
  /// The next step has no rows: it carries out what the cache wants done, to free pages.
  bool flushes() const { return flushes_; }
  /// Fills `rows` with the next step; empty when nothing can run now.
  void plan(std::vector<ScheduledRow>& rows) const;
  /// Applies the latest plan; nothing may have changed since plan(). Takes out of `rows` those
  /// whose pages are still held by what ended just before; they run in the next step.
  cache::CacheTicket commit(std::vector<ScheduledRow>& rows);
  /// Moves what the cache wants done in the committed step into `work`, whose lists are replaced.
  void take_cache_work(CacheWork& work);
  /// The executor has done the step of this commit, whose plan held the cache's work. In order.
  void finish_step(cache::CacheTicket step, const BatchPlan& plan);
  /// The row that this committed one follows gave `by` tokens more than one: it lies further on.
  void move(ScheduledRow& row, int32_t by);
  /// The first `num_final` tokens of a committed row are final, the others were refused drafts.
  /// `ids` are all known tokens of its sequence, the next one too where it is known.
  void settle(const ScheduledRow& row, int32_t num_final, std::span<const int32_t> ids);
  /// A row of a decoding sequence gave `num_tokens` more tokens.
  void accept(const ScheduledRow& row, int32_t num_tokens);
  void accept(SequenceId id, int32_t num_tokens);
  /// Forgets a sequence and frees its slot.
  void remove(SequenceId id, Ending ending = Ending::kAborted);

  int32_t num_waiting() const { return queue_.size(); }
  int32_t num_running() const { return static_cast<int32_t>(running_.size()); }
  int64_t num_used_tokens() const;  // tokens of the running sequences that have run
  int64_t num_preemptions() const { return num_preemptions_; }
  /// Oldest sequence that was never admitted, invalid when there is none.
  SequenceId oldest_new() const { return queue_.oldest_new(); }
  const SequenceState& state(SequenceId id) const;
  const SchedulerConfig& config() const { return config_; }
  /// Aborts when an invariant does not hold; for tests and idle moments.
  void check_invariants() const;

 private:
  struct Sequence {
    SequenceId id;
    int32_t num_prompt_tokens = 0;  // with those generated before a preemption
    int32_t num_holds = 0;          // steps that it has waited for a capture
    int32_t num_preemptions = 0;
    bool ready = true;                // decoding: its next row can be planned now; set by prepare()
    RequestQueue::Account account{};  // of its client
    SequenceState state{};
  };
  /// Pages that a plan has not given away yet.
  struct Room {
    int32_t full = 0;
    int32_t swa = 0;
  };

  Sequence& find(SequenceId id);
  const Sequence& find(SequenceId id) const;
  Sequence* holder(const ScheduledRow& row) const;
  Sequence& at(const ScheduledRow& row) const;
  static void take_tokens(Sequence& sequence, int32_t num_tokens);
  Room room() const;
  int32_t pages_of_next(const Decoding& decoding) const;
  bool leaves_most_out();
  int32_t fitting_tokens(const Prefilling& prefilling, int32_t num_tokens, Room& room) const;
  int32_t fitting_drafts(const ScheduledRow& row, int32_t num_drafts, Room& left) const;
  void add_drafts(std::vector<ScheduledRow>& rows,
                  int32_t num_prefilling,
                  int32_t& budget,
                  Room& left) const;
  bool reserve(ScheduledRow& row);
  void leave(Sequence& sequence);
  void take_copy(RequestSlot slot, std::vector<cache::ResumeCopy>* target);
  bool runs_short() const;
  SequenceId victim() const;
  void preempt(SequenceId id);
  bool awaits_capture(SequenceId id);
  bool admit(SequenceId id, bool alone);
  void admit_waiting(bool in_flight, SequenceId& stuck);
  bool make_way(SequenceId id, bool in_flight);
  bool is_full() const;

  SchedulerConfig config_;
  const SequenceKeys& keys_;
  cache::SequenceCache* cache_;
  SlotPool slots_;  // outlives the leases in sequences_
  std::unordered_map<SequenceId, Sequence> sequences_;
  RequestQueue queue_;                             // who waits; knows the running ones too
  std::vector<Sequence*> running_;                 // of sequences_, in order of admission
  std::vector<Sequence*> by_slot_;                 // the running ones; null: a free slot
  CacheWork work_;                                 // of the next step
  std::vector<cache::ResumeCopy> waiting_copies_;  // of sequences whose first row is to come
  int32_t prefill_limit_ = std::numeric_limits<int32_t>::max();
  std::vector<cache::CheckpointSlot> captures_running_;  // by end captures of steps in flight
  int64_t num_preemptions_ = 0;
  bool flushes_ = false;
  bool waits_ = false;  // pages are short, and the step in flight may free some
  mutable std::vector<ScheduledRow> scratch_;
  mutable std::vector<int32_t> wants_;
  mutable PromptShares shares_;
};

}  // namespace baleen::engine
