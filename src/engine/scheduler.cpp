#include "engine/scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace baleen::engine {

void SchedulerConfig::validate() const {
  if (num_slots < 1) {
    throw ConfigError(fmt::format("num_slots must be at least 1, is {}", num_slots));
  }
  if (max_step_tokens < num_slots) {
    throw ConfigError(
        fmt::format("max_step_tokens must be at least the number of slots ({}), is {}: every "
                    "running sequence needs a token in every step",
                    num_slots,
                    max_step_tokens));
  }
  if (max_prefill_chunk < 1) {
    throw ConfigError(
        fmt::format("max_prefill_chunk must be at least 1, is {}", max_prefill_chunk));
  }
}

Scheduler::Scheduler(SchedulerConfig config)
    : config_((config.validate(), config)), slots_(config.num_slots) {
  running_.reserve(static_cast<size_t>(config.num_slots));
}

Scheduler::Scheduler(SchedulerConfig config, cache::SequenceCache& cache, const SequenceKeys& keys)
    : Scheduler(config) {
  cache_ = &cache;
  keys_ = &keys;
}

Scheduler::Sequence& Scheduler::find(SequenceId id) {
  const auto found = sequences_.find(id);
  BALEEN_CHECK(found != sequences_.end(), "unknown sequence {}", id.value());
  return found->second;
}

const Scheduler::Sequence& Scheduler::find(SequenceId id) const {
  return const_cast<Scheduler*>(this)->find(id);
}

void Scheduler::enqueue(SequenceId id, int32_t num_prompt_tokens) {
  BALEEN_CHECK(num_prompt_tokens > 0, "num_prompt_tokens={}", num_prompt_tokens);
  const bool is_new = sequences_.try_emplace(id, Sequence{num_prompt_tokens, {}}).second;
  BALEEN_CHECK(is_new, "sequence {} is already known", id.value());
  waiting_.push_back(id);
}

Scheduler::Room Scheduler::room() const {
  if (cache_ == nullptr) {
    return {std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::max()};
  }
  const cache::PageBudget budget = cache_->budget();
  return {budget.full(), budget.swa()};
}

/// Pages of each pool that the decoding sequences need for their next token.
int32_t Scheduler::pages_of_decoding() const {
  int32_t pages = 0;
  for (const SequenceId id : running_) {
    if (const auto* decoding = find(id).state.get<Decoding>();
        decoding != nullptr && cache_ != nullptr) {
      pages += cache_->pages_needed(decoding->pages, decoding->length);
    }
  }
  return pages;
}

bool Scheduler::decodes() const {
  return std::any_of(running_.begin(), running_.end(), [&](SequenceId id) {
    return find(id).state.is<Decoding>();
  });
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

void Scheduler::preempt_last() {
  const SequenceId id = running_.back();
  running_.pop_back();
  Sequence& sequence = find(id);
  take_copy(sequence.state.slot(), nullptr);
  if (const auto* decoding = sequence.state.get<Decoding>()) {
    sequence.num_prompt_tokens = decoding->length;
  }
  cache::SequenceLease pages = sequence.state.to_waiting();
  if (auto job = cache_->preempt(std::move(pages))) {
    work_.end_captures.push_back(std::move(*job));
  }
  waiting_.push_front(id);
  ++num_preemptions_;
}

/// Whether the step under way has no token left for one more sequence.
bool Scheduler::is_full() const {
  plan(scratch_);
  int32_t num_tokens = 0;
  for (const ScheduledRow& row : scratch_) {
    num_tokens += row.num_tokens;
  }
  return num_tokens >= config_.max_step_tokens;
}

bool Scheduler::admit_front() {
  const SequenceId id = waiting_.front();
  Sequence& sequence = find(id);
  SlotLease slot = slots_.lease();
  cache::SequenceLease pages;
  if (cache_ != nullptr) {
    // Decoding sequences may each need a page soon; taking the last ones would preempt at once.
    const Room before = room();
    if (std::min(before.full, before.swa) <= num_running()) {
      return false;
    }
    auto admission = cache_->admit(slot.slot(), keys_->key(id), config_.max_prefill_chunk);
    if (!admission) {
      return false;
    }
    if (admission->copy) {
      waiting_copies_.push_back(std::move(*admission->copy));
    }
    pages = std::move(admission->lease);
  }
  waiting_.pop_front();
  sequence.state.to_prefilling(std::move(slot), std::move(pages));
  running_.push_back(id);
  return true;
}

SequenceId Scheduler::prepare() {
  flushes_ = false;
  const int64_t preemptions_before = num_preemptions_;
  const auto cannot_go_on = [&] {
    const Room left = room();
    if (pages_of_decoding() > std::min(left.full, left.swa)) {
      return true;
    }
    if (decodes()) {
      return false;
    }
    plan(scratch_);  // prompts alone: one that finds no page waits for nobody
    return scratch_.empty();
  };
  while (cache_ != nullptr && !running_.empty() && cannot_go_on()) {
    if (!work_.end_captures.empty()) {
      flushes_ = true;  // what ended holds pages until it is captured
      return {};
    }
    if (running_.size() == 1) {
      return running_.front();
    }
    preempt_last();
  }
  if (running_.empty() && has_end_captures()) {
    flushes_ = true;  // first make what has just ended resumable: the next sequence may continue it
    return {};
  }
  // Who was just preempted does not come straight back.
  while (num_preemptions_ == preemptions_before && !waiting_.empty() && slots_.num_free() > 0 &&
         !is_full()) {
    if (admit_front()) {
      continue;
    }
    if (running_.empty() && work_.end_captures.empty()) {
      return waiting_.front();
    }
    flushes_ = running_.empty();
    break;
  }
  // Nothing else to do: make what has just ended resumable before the next sequence asks for it.
  flushes_ = flushes_ || (running_.empty() && has_end_captures());
  return {};
}

void Scheduler::plan(std::vector<ScheduledRow>& rows) const {
  rows.clear();
  if (flushes_) {
    return;
  }
  Room left = room();
  int32_t budget = config_.max_step_tokens;
  for (const SequenceId id : running_) {
    if (const auto* decoding = find(id).state.get<Decoding>()) {
      rows.push_back({.sequence = id,
                      .slot = decoding->slot.slot(),
                      .kind = RowKind::kDecode,
                      .first_position = decoding->length - 1,
                      .num_tokens = 1});
      --budget;
    }
  }
  const int32_t for_decoding = pages_of_decoding();
  left.full -= for_decoding;
  left.swa -= for_decoding;
  // Sequences under way keep a token each, whatever the earlier ones could use.
  int32_t num_prefilling = num_running() - static_cast<int32_t>(rows.size());
  for (const SequenceId id : running_) {
    const Sequence& sequence = find(id);
    const auto* prefilling = sequence.state.get<Prefilling>();
    if (prefilling == nullptr) {
      continue;
    }
    const int32_t num_left = sequence.num_prompt_tokens - prefilling->num_done;
    const int32_t num_tokens = fitting_tokens(
        *prefilling,
        std::min({num_left, config_.max_prefill_chunk, budget - std::max(num_prefilling - 1, 0)}),
        left);
    --num_prefilling;
    if (num_tokens <= 0) {
      continue;  // no page for it in this step
    }
    rows.push_back({.sequence = id,
                    .slot = prefilling->slot.slot(),
                    .kind = RowKind::kPrefill,
                    .first_position = prefilling->num_done,
                    .num_tokens = num_tokens,
                    .begins = prefilling->fresh,
                    .completes_prompt = num_tokens == num_left});
    budget -= num_tokens;
  }
}

void Scheduler::commit(std::vector<ScheduledRow>& rows) {
  if (cache_ != nullptr) {
    // Pages that end captures still hold count as room, but are free only after this step: a row
    // may find none. It waits for the next step.
    std::erase_if(rows, [&](const ScheduledRow& row) {
      return !cache_->reserve(*find(row.sequence).state.pages(),
                              row.first_position + row.num_tokens);
    });
    // Joined only now: a page that the step holds is not free for another row of it.
    step_ = cache_->open_step();
  }
  for (const ScheduledRow& row : rows) {
    if (row.begins) {
      take_copy(row.slot, &work_.copies);
    }
    Sequence& sequence = find(row.sequence);
    BALEEN_CHECK(sequence.state.slot() == row.slot,
                 "plan is out of date: slot {} planned, {} held",
                 row.slot.value(),
                 sequence.state.slot().value());
    const int32_t end = row.first_position + row.num_tokens;
    if (cache_ != nullptr) {
      cache::SequenceLease& pages = *sequence.state.pages();
      if (row.kind == RowKind::kPrefill) {
        cache_->plan_captures(pages, row.first_position, end, work_.captures);
      }
      cache_->join(step_, pages, end);
    }
    if (row.kind == RowKind::kPrefill) {
      auto* prefilling = sequence.state.get<Prefilling>();
      prefilling->num_done = end;
      prefilling->fresh = false;
      if (row.completes_prompt) {
        sequence.state.to_decoding();
      }
    }
  }
  if (cache_ != nullptr) {
    cache_->take_page_changes(work_.pages);
  }
}

void Scheduler::take_cache_work(CacheWork& work) {
  work = {};
  std::swap(work, work_);
}

void Scheduler::finish_step(const BatchPlan& plan) {
  if (cache_ == nullptr) {
    return;
  }
  for (const auto* jobs : {&plan.end_captures, &plan.captures}) {
    for (const cache::CaptureJob& job : *jobs) {
      cache_->complete(job.ticket);
    }
  }
  for (const cache::ResumeCopy& copy : plan.copies) {
    cache_->complete(copy.ticket);
  }
  cache_->complete(step_);
}

void Scheduler::settle(const ScheduledRow& row) {
  if (cache_ == nullptr) {
    return;
  }
  cache::SequenceLease* pages = find(row.sequence).state.pages();
  BALEEN_CHECK(pages != nullptr, "sequence {} holds no pages", row.sequence.value());
  const std::span<const int32_t> ids = keys_->key(row.sequence).ids;
  const auto begin = static_cast<size_t>(row.first_position);
  const auto end = begin + static_cast<size_t>(row.num_tokens);
  cache_->commit(*pages, ids.subspan(begin, end - begin), end < ids.size() ? ids[end] : -1);
}

void Scheduler::accept(SequenceId id, int32_t num_tokens) {
  Decoding* decoding = find(id).state.get<Decoding>();
  BALEEN_CHECK(decoding != nullptr && num_tokens > 0,
               "sequence {} is {}, num_tokens={}",
               id.value(),
               find(id).state.name(),
               num_tokens);
  decoding->length += num_tokens;
}

void Scheduler::remove(SequenceId id, Ending ending) {
  Sequence& sequence = find(id);
  if (sequence.state.is<Waiting>()) {
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), id));
  } else {
    running_.erase(std::find(running_.begin(), running_.end(), id));
    take_copy(sequence.state.slot(), nullptr);
    cache::SequenceLease& pages = *sequence.state.pages();
    if (pages.valid() && ending == Ending::kFinished) {
      if (auto job = cache_->finish(std::move(pages))) {
        work_.end_captures.push_back(std::move(*job));
      }
    } else if (pages.valid()) {
      cache_->abort(std::move(pages));
    }
  }
  sequence.state.to_finished();
  sequences_.erase(id);
}

int64_t Scheduler::num_used_tokens() const {
  int64_t total = 0;
  for (const SequenceId id : running_) {
    const SequenceState& state = find(id).state;
    if (const auto* prefilling = state.get<Prefilling>()) {
      total += prefilling->num_done;
    } else if (const auto* decoding = state.get<Decoding>()) {
      total += decoding->length;
    }
  }
  return total;
}

SequenceId Scheduler::front_of_queue() const {
  return waiting_.empty() ? SequenceId() : waiting_.front();
}

const SequenceState& Scheduler::state(SequenceId id) const {
  return find(id).state;
}

void Scheduler::check_invariants() const {
  BALEEN_CHECK(sequences_.size() == waiting_.size() + running_.size(),
               "{} sequences, {} waiting, {} running",
               sequences_.size(),
               waiting_.size(),
               running_.size());
  BALEEN_CHECK(num_running() + slots_.num_free() == slots_.num_slots(),
               "{} running and {} free of {} slots",
               num_running(),
               slots_.num_free(),
               slots_.num_slots());
  std::vector<bool> held(static_cast<size_t>(slots_.num_slots()), false);
  for (const SequenceId id : running_) {
    const RequestSlot slot = find(id).state.slot();
    BALEEN_CHECK(slot.valid() && !held[static_cast<size_t>(slot.value())],
                 "slot {} of sequence {} is invalid or shared",
                 slot.value(),
                 id.value());
    held[static_cast<size_t>(slot.value())] = true;
  }
  for (const SequenceId id : waiting_) {
    BALEEN_CHECK(
        find(id).state.is<Waiting>(), "sequence {} waits without being waiting", id.value());
  }
}

}  // namespace baleen::engine
