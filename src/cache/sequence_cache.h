#pragma once
// What an engine needs of the cache: a lease per running sequence. The cache finds the longest
// prefix that need not be computed, lends pages for the rest, shares finished pages with later
// sequences, makes resume points, and takes everything back. All ids, no payload: the executor
// moves bytes as the jobs say. Owned by the engine; its thread only. Leases must end before the
// cache.
//
//   auto admitted = cache.admit(slot, {.ids = prompt, .space = space}, chunk_tokens);
//   if (!admitted) { ... no room now; nothing has changed ... }
//   SequenceLease& lease = admitted->lease;               // compute from lease.committed() on
//   cache.plan_captures(lease, begin, end, plan.captures);
//   CacheTicket step = cache.open_step();  cache.join(step, lease, end);
//   ... the step runs; then for each finished ticket: cache.complete(ticket); ...
//   cache.commit(lease, ids_of_the_chunk, next_id);
//   if (cache.reserve(lease, lease.committed() + 1)) { ... next step ... }
//   std::optional<CaptureJob> job = cache.finish(std::move(lease), next_id);

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/strong_id.h"
#include "cache/cache_geometry.h"
#include "cache/cache_stats.h"
#include "cache/namespace_table.h"
#include "cache/pool.h"
#include "cache/resume_point.h"
#include "cache/sequence.h"
#include "cache/shadow_radix.h"
#include "cache/state_rings.h"
#include "cache/ticket_table.h"

namespace baleen::cache {

class SequenceCache;

/// A running sequence's hold on the cache. Move-only; one that is dropped is aborted.
class SequenceLease {
 public:
  SequenceLease() = default;
  SequenceLease(SequenceLease&& other) noexcept
      : cache_(std::exchange(other.cache_, nullptr)), slot_(other.slot_) {}
  SequenceLease& operator=(SequenceLease&& other) noexcept;
  ~SequenceLease();

  bool valid() const { return cache_ != nullptr; }
  RequestSlot slot() const { return slot_; }
  /// Tokens of the prefix that were not computed again.
  int32_t cached_tokens() const { return sequence().cached_tokens; }
  /// Tokens whose state is final; the next pass begins here.
  int32_t committed() const { return sequence().committed; }
  /// Positions that have pages.
  int32_t allocated() const;
  /// One full page per block of 256 positions.
  std::span<const FullPage> full_pages() const { return sequence().pages; }
  /// Window page of a block; 0 where its rows were given up.
  SwaPage swa_page(int32_t block) const;
  /// Draft rows before this position are hidden from the draft layer.
  int32_t draft_begin() const { return sequence().draft_begin; }
  /// This draft row is hidden too; -1: none.
  int32_t draft_hole() const { return sequence().draft_hole; }

 private:
  friend class SequenceCache;
  SequenceLease(SequenceCache* cache, RequestSlot slot) : cache_(cache), slot_(slot) {}
  const Sequence& sequence() const;

  SequenceCache* cache_ = nullptr;
  RequestSlot slot_;
};

struct SequenceKey {
  std::span<const int32_t> ids;  // all known tokens: the prompt, later also what was generated
  CacheNamespace space{};
  int32_t reuse_limit = -1;  // most tokens to take over (input log-probs are wanted from there)
  bool drafts = false;       // the draft layer runs for this sequence
  bool share = true;         // false: takes nothing from other sequences and gives nothing
};

/// Copies that make a sequence continue at a resume point; first in the next step's stream, behind
/// captures without `in_pass`. If the sequence ends before a step has taken the copy up, drop it
/// and complete its ticket.
struct ResumeCopy {
  struct Block {
    int32_t block = 0;
    FullPage source;  // compressed entries and capture records below `position` ...
    FullPage target;  // ... go here
    SwaPage window;   // window rows and carry rows go here, by position
  };
  CacheTicket ticket;
  RequestSlot slot;
  int32_t position = 0;  // the first token to compute
  CheckpointSlot source;
  std::vector<OpenGroupBlock> open_blocks;  // to the request's kC128 ring
  std::vector<Block> blocks;
  bool recompute_draft_row = false;  // row position - 1 belongs to another next token: streams are
                                     // in the slot, the draft layer begins one row earlier
};

/// What to write into a checkpoint slot.
struct CaptureJob {
  struct WindowPage {
    int32_t block = 0;
    SwaPage page;
  };
  CacheTicket ticket;
  RequestSlot slot;
  int32_t position = 0;  // rows position - window ... position - 1
  CheckpointSlot target;
  std::vector<OpenGroupBlock> open_blocks;  // rows of the open kC128 group
  std::vector<WindowPage> window;           // where the window rows lie
  bool in_pass = false;  // carry rows come from the pass's own rows; else all from pages and rings,
                         // before anything else of the step, as the request slot may be reused
  bool with_streams = false;  // the streams of position - 1 are at hand and wanted
};

/// A block of a request's page table that changed. Later entries win. Window pages that the tree
/// gives up behind a sequence's window are not reported: nothing reads them there.
struct PageChange {
  RequestSlot slot;
  int32_t block = 0;
  FullPage full;
  SwaPage swa;  // 0: no window rows
};

/// Free pages, and pages that could be freed at once.
struct PageBudget {
  int32_t free_full = 0;
  int32_t evictable_full = 0;
  int32_t free_swa = 0;
  int32_t evictable_swa = 0;
  int32_t full() const { return free_full + evictable_full; }
  int32_t swa() const { return free_swa + evictable_swa; }
};

struct CapturePolicy {
  int32_t interval = 2048;  // resume points inside long prompts, tokens; 0: none
  bool prompt = true;       // near the end of every prompt
  bool branch = true;       // where prompts part
  bool turn = true;         // at the end of a sequence
};

struct SequenceCacheOptions {
  CacheGeometry geometry;
  ShadowRadixSizes sizes;
  StateRings rings;
  int32_t verified_tokens = 1;  // most tokens of a verify step: drafts + 1
  int32_t request_slots = 0;
  CapturePolicy capture;
};

class SequenceCache {
 public:
  /// `observer` may be null and outlives the cache. Throws ConfigError for bad options.
  explicit SequenceCache(const SequenceCacheOptions& options, PageObserver* observer = nullptr);
  ~SequenceCache();
  SequenceCache(const SequenceCache&) = delete;
  SequenceCache& operator=(const SequenceCache&) = delete;

  struct Admission {
    SequenceLease lease;
    std::optional<ResumeCopy> copy;
  };

  // Looking, without any change.
  PrefixMatch peek(const SequenceKey& key) const;
  /// Whether the target of a capture of an ended sequence will, once written, let this one continue
  /// further than `match`.
  bool will_reach(CheckpointSlot target, const SequenceKey& key, const PrefixMatch& match) const;
  PageBudget budget() const;
  /// Pages of each pool that `reserve` would take.
  int32_t pages_needed(const SequenceLease& lease, int32_t end) const;

  // The life of a sequence.
  /// Matches, locks, and reserves room for the first `chunk_tokens` tokens behind the hit. The slot
  /// must be unused. Nothing, and no change, if the pools are short.
  std::optional<Admission> admit(RequestSlot slot, const SequenceKey& key, int32_t chunk_tokens);
  /// Pages for positions below `end`. False, and no change, if the pools are short.
  bool reserve(SequenceLease& lease, int32_t end);
  /// Resume points to make in a pass over [begin, end), whose tokens are all final (no drafts).
  void plan_captures(SequenceLease& lease,
                     int32_t begin,
                     int32_t end,
                     std::vector<CaptureJob>& jobs);
  /// `ids` are the next tokens whose state is final; refused drafts are simply not among them.
  /// `next_id` is the token after them, -1 if it is not known. Finished pages become shared.
  void commit(SequenceLease& lease, std::span<const int32_t> ids, int32_t next_id = -1);
  /// Ends a sequence and keeps what later ones can use. The job, if there is one, makes it
  /// resumable at its end.
  std::optional<CaptureJob> finish(SequenceLease&& lease, int32_t next_id = -1);
  /// The same for a sequence that will be admitted again: its compressed entries stay until others
  /// need the room, and the next admission takes them over.
  std::optional<CaptureJob> preempt(SequenceLease&& lease, int32_t next_id = -1);
  /// Ends a sequence without a resume point. Pages shared before stay.
  void abort(SequenceLease&& lease);

  // Steps and copies in flight.
  CacheTicket open_step();
  /// The step reads the sequence's pages and writes its positions below `end`, refusable drafts
  /// included: no page is reused before it is complete, whatever becomes of the sequence.
  void join(CacheTicket step, const SequenceLease& lease, int32_t end);
  /// The latest step that it joined writes up to `end`: what was accepted before put it further on.
  void extend(const SequenceLease& lease, int32_t end);
  /// An asynchronous copy of some blocks, independent of steps.
  CacheTicket hold_blocks(const SequenceLease& lease, int32_t first_block, int32_t num_blocks);
  /// Unknown and repeated completions are counted as late events.
  void complete(CacheTicket ticket);

  /// Evicts until so many pages are free. False, and nothing is evicted, if that is impossible.
  bool make_room(int32_t full_pages, int32_t swa_pages) {
    return radix_.make_room(full_pages, swa_pages);
  }
  /// Gives up all that is not in use, and all captures that are under way.
  void flush();
  /// Page-table changes since the last call, in order.
  void take_page_changes(std::vector<PageChange>& changes);
  std::vector<CacheEvent> take_events() { return radix_.take_events(); }
  const CacheStats& stats() const { return radix_.stats(); }
  const CacheGeometry& geometry() const { return radix_.geometry(); }

  // For the invariant checker.
  const ShadowRadix& radix() const { return radix_; }
  std::span<const Sequence> sequences() const { return sequences_; }
  const TicketTable& tickets() const { return tickets_; }

 private:
  friend class SequenceLease;

  Sequence& sequence_of(RequestSlot slot);
  int32_t most_reuse(const SequenceKey& key) const;
  int32_t first_private_block(const PrefixMatch& match) const;

  // sequence_cache.cpp: admission and pages.
  void take_shared_pages(Sequence& s, FullPage node);
  void add_blocks(Sequence& s, int32_t num_blocks);
  ResumeCopy start_resume(Sequence& s, const PrefixMatch& match);
  void note_change(const Sequence& s, int32_t block);
  void count_admission(const PrefixMatch& match, int32_t num_ids);

  // sequence_share.cpp: from private pages to the tree.
  void share_blocks(Sequence& s, bool ending);
  FullPage share_block(Sequence& s, int32_t block, FullPage parent, PageLease lease);
  void move_locks(Sequence& s, FullPage node);
  void release_old_windows(Sequence& s);
  void hold_in_flight(Sequence& s, FullPage page);
  void keep_open_tickets(Sequence& s);

  // sequence_drafts.cpp: which rows of the draft layer are valid.
  void set_draft_rows(Sequence& s, const PrefixMatch& match, std::span<const int32_t> ids);
  bool recomputes_draft_row(const Sequence& s, const PrefixMatch& match, int32_t next_id) const;
  DraftMarks draft_marks_of(const Sequence& s, int32_t block) const;
  void see_draft_rows(Sequence& s, SwaPage page, int32_t end, int32_t next_id);
  void hide_draft_row(Sequence& s, int32_t position);
  int32_t id_at(const Sequence& s, int32_t position) const;

  // sequence_capture.cpp: resume points from plan to tree.
  std::vector<CaptureJob::WindowPage> window_of(const Sequence& s, int32_t position) const;
  CheckpointSlot take_point(Sequence& s, int32_t position, PointKind kind);
  CaptureJob job_of(CheckpointSlot target, CacheTicket ticket, const Sequence& s) const;
  bool place(const Sequence& s, ResumePoint& point) const;
  void show(CheckpointSlot slot);
  void settle(Sequence& s);
  void orphan(CheckpointSlot slot);
  void drop_orphan(CheckpointSlot slot);
  void give_up(Sequence& s);
  void payload_written(CheckpointSlot slot);

  // sequence_end.cpp
  std::optional<CaptureJob> end(SequenceLease&& lease, int32_t next_id);
  bool rings_hold(const Sequence& s, int32_t position) const;
  std::optional<CaptureJob> capture_end(Sequence& s, int32_t position, CacheTicket ticket);
  void let_go(Sequence& s);
  void give_back(TicketHolds& holds);

  ShadowRadix radix_;
  StateRings rings_;
  CapturePolicy capture_;
  TicketTable tickets_;
  std::vector<Sequence> sequences_;  // by request slot
  std::vector<PageChange> changes_;
};

}  // namespace baleen::cache
