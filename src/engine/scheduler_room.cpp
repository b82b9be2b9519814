// How the scheduler makes room for a step: who is preempted, who is admitted, who must wait.

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "engine/scheduler.h"

namespace baleen::engine {

Scheduler::Room Scheduler::room() const {
  if (cache_ == nullptr) {
    return {std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::max()};
  }
  const cache::PageBudget budget = cache_->budget();
  return {budget.full(), budget.swa()};
}

/// Pages of each pool that a decoding sequence needs for its next token.
int32_t Scheduler::pages_of_next(const Decoding& decoding) const {
  return cache_ == nullptr
             ? 0
             : cache_->pages_needed(decoding.pages,
                                    decoding.length + decoding.pending + decoding.most_shift());
}

/// Notes which decoding sequences can have a row in the step that is planned now. True if most
/// cannot, as they wait for the tokens of the step in flight: prompts alone would push them aside.
bool Scheduler::leaves_most_out() {
  int32_t num_ready = 0;
  int32_t num_left_out = 0;
  for (Sequence* sequence : running_) {
    if (const auto* decoding = sequence->state.get<Decoding>()) {
      sequence->ready =
          decoding->pending == 0 ||
          keys_.can_run_ahead(sequence->id,
                              decoding->slot.slot(),
                              decoding->pending * config_.max_accepted + decoding->most_shift());
      ++(sequence->ready ? num_ready : num_left_out);
    }
  }
  return num_left_out > num_ready;
}

/// Tokens of the next chunk for which there are pages; takes those from `room`.
int32_t Scheduler::fitting_tokens(const Prefilling& prefilling,
                                  int32_t num_tokens,
                                  Room& room) const {
  if (cache_ == nullptr || num_tokens <= 0) {
    return num_tokens;
  }
  const int32_t pages = std::max(0, std::min(room.full, room.swa));
  int32_t needed = cache_->pages_needed(prefilling.pages, prefilling.num_done + num_tokens);
  if (needed > pages) {
    const int32_t page_tokens = cache_->geometry().page_tokens;
    const int32_t end = prefilling.pages.allocated() + pages * page_tokens;
    num_tokens = std::min(num_tokens, end - prefilling.num_done);
    needed = pages;
  }
  room.full -= needed;
  room.swa -= needed;
  return num_tokens;
}

/// The resume copy of a slot, if its first row is still to come: moves it to `target`, or without
/// one lets it go.
void Scheduler::take_copy(RequestSlot slot, std::vector<cache::ResumeCopy>* target) {
  const auto found = std::find_if(waiting_copies_.begin(),
                                  waiting_copies_.end(),
                                  [&](const cache::ResumeCopy& copy) { return copy.slot == slot; });
  if (found == waiting_copies_.end()) {
    return;
  }
  if (target != nullptr) {
    target->push_back(std::move(*found));
  } else {
    cache_->complete(found->ticket);
  }
  waiting_copies_.erase(found);
}

/// Whom to preempt: one of the least priority; not one that was preempted too often while there is
/// another; then the one admitted last.
SequenceId Scheduler::victim() const {
  SequenceId best;
  std::pair<int32_t, bool> best_rank;
  for (const Sequence* sequence : running_) {
    const std::pair<int32_t, bool> rank(queue_.priority(sequence->id),
                                        sequence->num_preemptions >= config_.max_preemptions);
    if (!best.valid() || rank <= best_rank) {
      best = sequence->id;
      best_rank = rank;
    }
  }
  return best;
}

void Scheduler::preempt(SequenceId id) {
  Sequence& sequence = find(id);
  leave(sequence);
  if (const auto* decoding = sequence.state.get<Decoding>()) {
    BALEEN_CHECK(decoding->pending == 0, "sequence {} has a row in flight", id.value());
    sequence.num_prompt_tokens = decoding->length;
  }
  cache::SequenceLease pages = sequence.state.to_waiting();
  if (pages.valid()) {
    if (auto job = cache_->preempt(std::move(pages))) {
      work_.end_captures.push_back(std::move(*job));
    }
  }
  queue_.push_preempted(id);
  ++sequence.num_preemptions;
  ++num_preemptions_;
}

void Scheduler::preempt_all() {
  while (!running_.empty()) {
    preempt(running_.back()->id);
  }
}

/// Whether one more prompt would only take tokens from others, of which there are enough.
bool Scheduler::is_full() const {
  const auto num_prefills =
      std::count_if(running_.begin(), running_.end(), [](const Sequence* sequence) {
        return sequence->state.is<Prefilling>();
      });
  if (num_prefills < config_.max_prefills) {
    return false;
  }
  plan(scratch_);
  int32_t num_tokens = 0;
  for (const ScheduledRow& row : scratch_) {
    num_tokens += row.num_tokens - row.num_drafts;  // drafts make way
  }
  return num_tokens >= config_.max_step_tokens;
}

/// What the sequence could continue may just be being made resumable: admitted when that is done,
/// it need not run it again. Waits no longer than that.
bool Scheduler::awaits_capture(SequenceId id) {
  constexpr int32_t kMostHolds = 2;  // until the captures are in a step, until that step is done
  Sequence& sequence = find(id);
  if (cache_ == nullptr || (work_.end_captures.empty() && captures_running_.empty()) ||
      sequence.num_holds >= kMostHolds) {
    return false;
  }
  const cache::SequenceKey key = keys_.key(id);
  const cache::PrefixMatch match = cache_->peek(key);
  const auto helps = [&](cache::CheckpointSlot target) {
    return cache_->will_reach(target, key, match);
  };
  const bool waits = std::any_of(captures_running_.begin(), captures_running_.end(), helps) ||
                     std::any_of(work_.end_captures.begin(),
                                 work_.end_captures.end(),
                                 [&](const cache::CaptureJob& job) { return helps(job.target); });
  sequence.num_holds += waits ? 1 : 0;
  return waits;
}

/// `alone`: nothing else runs or is in flight.
bool Scheduler::admit(SequenceId id, bool alone) {
  Sequence& sequence = find(id);
  SlotLease slot = slots_.lease();
  cache::SequenceLease pages;
  if (cache_ != nullptr) {
    // Decoding sequences may each need a page soon; taking the last ones would preempt at once.
    const Room before = room();
    if (std::min(before.full, before.swa) <= num_running()) {
      return false;
    }
    cache::SequenceKey key = keys_.key(id);
    auto admission = cache_->admit(slot.slot(), key, config_.max_prefill_chunk);
    if (!admission && alone) {
      // Continuing at a resume point takes its page and a copy of it at the same time. One that
      // needs every page of the cache begins anew.
      key.reuse_limit = 0;
      admission = cache_->admit(slot.slot(), key, config_.max_prefill_chunk);
    }
    if (!admission) {
      return false;
    }
    if (admission->copy) {
      waiting_copies_.push_back(std::move(*admission->copy));
    }
    pages = std::move(admission->lease);
  }
  queue_.erase(id);
  by_slot_[static_cast<size_t>(slot.slot().value())] = &sequence;
  sequence.state.to_prefilling(std::move(slot), std::move(pages));
  running_.push_back(&sequence);
  return true;
}

/// The decoding sequences find no page for their next token, or, without any, no prompt does.
bool Scheduler::runs_short() const {
  const Room left = room();
  int32_t num_pages = 0;
  bool decodes = false;
  for (const Sequence* sequence : running_) {
    if (const auto* decoding = sequence->state.get<Decoding>()) {
      decodes = true;
      num_pages += sequence->ready ? pages_of_next(*decoding) : 0;
    }
  }
  if (num_pages > std::min(left.full, left.swa)) {
    return true;
  }
  if (decodes) {
    return false;
  }
  plan(scratch_);  // prompts alone: one that finds no page waits for nobody
  return scratch_.empty();
}

SequenceId Scheduler::prepare(bool in_flight) {
  flushes_ = false;
  waits_ = false;
  if (leaves_most_out()) {
    BALEEN_CHECK(in_flight, "sequences wait for tokens of no step");
    waits_ = true;
    return {};
  }
  const int64_t preemptions_before = num_preemptions_;
  while (cache_ != nullptr && !running_.empty() && runs_short()) {
    if (in_flight) {
      waits_ = true;  // its result may end sequences, and it holds pages of some that have ended
      return {};
    }
    if (!work_.end_captures.empty()) {
      flushes_ = true;  // what ended holds pages until it is captured
      return {};
    }
    if (running_.size() == 1) {
      return running_.front()->id;
    }
    preempt(victim());
  }
  if (running_.empty() && (has_end_captures() || !captures_running_.empty())) {
    // First make what has just ended resumable: the next sequence may continue it.
    flushes_ = has_end_captures();
    waits_ = !flushes_;
    return {};
  }
  SequenceId stuck;
  // Who was just preempted does not come straight back.
  if (num_preemptions_ == preemptions_before) {
    admit_waiting(in_flight, stuck);
  }
  return stuck;
}

void Scheduler::admit_waiting(bool in_flight, SequenceId& stuck) {
  while (!queue_.empty() && !is_full()) {
    const SequenceId id = queue_.front();
    if (slots_.num_free() > 0) {
      if (awaits_capture(id)) {
        return;
      }
      if (admit(id, running_.empty() && !in_flight)) {
        continue;
      }
    }
    if (make_way(id, in_flight)) {
      continue;
    }
    if (running_.empty() && !in_flight) {
      stuck = id;
    }
    waits_ = waits_ || running_.empty();
    return;
  }
}

/// Preempts a running sequence that is far less important than this one.
bool Scheduler::make_way(SequenceId id, bool in_flight) {
  if (config_.preemption_threshold < 0 || running_.empty() || has_end_captures() ||
      !captures_running_.empty()) {
    return false;  // what a preempted sequence gives up is free when its capture is done
  }
  const SequenceId weakest = victim();
  if (int64_t{queue_.priority(weakest)} + config_.preemption_threshold >= queue_.priority(id)) {
    return false;
  }
  if (in_flight) {
    waits_ = true;
    return false;
  }
  preempt(weakest);
  return true;
}

}  // namespace baleen::engine
