#include "engine/scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/at_least.h"
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
  check_at_least("max_prefill_chunk", max_prefill_chunk, 1);
  check_at_least("max_prefills", max_prefills, 1);
  check_at_least("preemption_threshold", preemption_threshold, -1);
  check_at_least("max_preemptions", max_preemptions, 1);
  check_at_least("max_accepted", max_accepted, 1);
}

Scheduler::Scheduler(SchedulerConfig config, const SequenceKeys& keys, cache::SequenceCache* cache)
    : config_((config.validate(), config)),
      keys_(keys),
      cache_(cache),
      slots_(config.num_slots),
      by_slot_(static_cast<size_t>(config.num_slots), nullptr) {
  running_.reserve(static_cast<size_t>(config.num_slots));
}

Scheduler::Sequence& Scheduler::find(SequenceId id) {
  const auto found = sequences_.find(id);
  BALEEN_CHECK(found != sequences_.end(), "unknown sequence {}", id.value());
  return found->second;
}

const Scheduler::Sequence& Scheduler::find(SequenceId id) const {
  return const_cast<Scheduler*>(this)->find(id);
}

/// The sequence of a row, null if it has ended since; its slot may be another's by now.
Scheduler::Sequence* Scheduler::holder(const ScheduledRow& row) const {
  Sequence* sequence = by_slot_[static_cast<size_t>(row.slot.value())];
  return sequence != nullptr && sequence->id == row.sequence ? sequence : nullptr;
}

Scheduler::Sequence& Scheduler::at(const ScheduledRow& row) const {
  Sequence* sequence = holder(row);
  BALEEN_CHECK(sequence != nullptr,
               "plan is out of date: sequence {} does not hold slot {}",
               row.sequence.value(),
               row.slot.value());
  return *sequence;
}

void Scheduler::enqueue(SequenceId id, int32_t num_prompt_tokens, QueuePlace place) {
  BALEEN_CHECK(num_prompt_tokens > 0, "num_prompt_tokens={}", num_prompt_tokens);
  const auto [sequence, is_new] =
      sequences_.try_emplace(id, Sequence{.id = id, .num_prompt_tokens = num_prompt_tokens});
  BALEEN_CHECK(is_new, "sequence {} is already known", id.value());
  queue_.push(id, std::move(place));
  sequence->second.account = queue_.account(id);
}

void Scheduler::plan(std::vector<ScheduledRow>& rows) const {
  rows.clear();
  if (flushes_ || waits_) {
    return;
  }
  Room left = room();
  int32_t budget = config_.max_step_tokens;
  int32_t num_decoding = 0;
  int32_t for_decoding = 0;  // pages
  for (const Sequence* sequence : running_) {
    const auto* decoding = sequence->state.get<Decoding>();
    if (decoding == nullptr) {
      continue;
    }
    ++num_decoding;
    if (sequence->ready) {
      rows.push_back({.sequence = sequence->id,
                      .slot = decoding->slot.slot(),
                      .kind = RowKind::kDecode,
                      .first_position = decoding->length - 1 + decoding->pending,
                      .most_shift = decoding->most_shift(),
                      .num_tokens = 1,
                      .follows = decoding->pending > 0 ? decoding->last_row : -1});
      --budget;
      for_decoding += pages_of_next(*decoding);
    }
  }
  left.full -= for_decoding;
  left.swa -= for_decoding;
  wants_.clear();
  for (const Sequence* sequence : running_) {
    if (const auto* prefilling = sequence->state.get<Prefilling>()) {
      wants_.push_back(
          std::min(sequence->num_prompt_tokens - prefilling->num_done, config_.max_prefill_chunk));
    }
  }
  add_drafts(rows, static_cast<int32_t>(wants_.size()), budget, left);
  if (num_decoding > 0) {
    budget = std::min(budget, std::max(prefill_limit_, static_cast<int32_t>(wants_.size())));
  }
  const std::span<const int32_t> shares = shares_.divide(wants_, budget);
  size_t num_prefilling = 0;
  for (const Sequence* sequence : running_) {
    const auto* prefilling = sequence->state.get<Prefilling>();
    if (prefilling == nullptr) {
      continue;
    }
    const int32_t num_tokens = fitting_tokens(*prefilling, shares[num_prefilling++], left);
    if (num_tokens <= 0) {
      continue;  // no page for it in this step
    }
    rows.push_back(
        {.sequence = sequence->id,
         .slot = prefilling->slot.slot(),
         .kind = RowKind::kPrefill,
         .first_position = prefilling->num_done,
         .num_tokens = num_tokens,
         .begins = prefilling->fresh,
         .completes_prompt = prefilling->num_done + num_tokens == sequence->num_prompt_tokens});
  }
}

cache::CacheTicket Scheduler::commit(std::vector<ScheduledRow>& rows) {
  cache::CacheTicket step;
  if (cache_ != nullptr) {
    // Pages that end captures still hold count as room, but are free only after this step: a row
    // may find none. It waits for the next step.
    std::erase_if(rows, [&](ScheduledRow& row) { return !reserve(row); });
    // Joined only now: a page that the step holds is not free for another row of it.
    step = cache_->open_step();
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    ScheduledRow& row = rows[i];
    if (row.begins) {
      take_copy(row.slot, &work_.copies);
    }
    Sequence& sequence = at(row);
    queue_.charge(sequence.account, row.num_tokens);
    const int32_t end = row.first_position + row.num_tokens;
    if (cache_ != nullptr) {
      cache::SequenceLease& pages = *sequence.state.pages();
      if (row.kind == RowKind::kPrefill) {
        cache_->plan_captures(pages, row.first_position, end, work_.captures);
      }
      cache_->join(step, pages, end);
      row.draft_begin = pages.draft_begin();
      row.draft_hole = pages.draft_hole();
    }
    if (row.kind == RowKind::kPrefill) {
      auto* prefilling = sequence.state.get<Prefilling>();
      prefilling->num_done = end;
      prefilling->fresh = false;
      if (row.completes_prompt) {
        sequence.state.to_decoding();
      }
    }
    if (row.draws()) {
      auto* decoding = sequence.state.get<Decoding>();
      ++decoding->pending;
      decoding->last_row = static_cast<int32_t>(i);
      decoding->last_drafts = row.num_drafts;
    }
  }
  if (cache_ != nullptr) {
    cache_->take_page_changes(work_.pages);
  }
  for (const cache::CaptureJob& job : work_.end_captures) {
    captures_running_.push_back(job.target);
  }
  return step;
}

void Scheduler::take_cache_work(CacheWork& work) {
  std::swap(work, work_);
  work_.end_captures.clear();
  work_.pages.clear();
  work_.copies.clear();
  work_.captures.clear();
}

void Scheduler::finish_step(cache::CacheTicket step, const BatchPlan& plan) {
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
  cache_->complete(step);
  captures_running_.erase(
      captures_running_.begin(),
      captures_running_.begin() + static_cast<std::ptrdiff_t>(plan.end_captures.size()));
}

void Scheduler::move(ScheduledRow& row, int32_t by) {
  row.first_position += by;
  Sequence* sequence = holder(row);
  if (cache_ != nullptr && sequence != nullptr) {
    BALEEN_CHECK(by <= row.most_shift, "moved by {} of at most {}", by, row.most_shift);
    cache_->extend(*sequence->state.pages(), row.first_position + row.num_tokens);
  }
  row.most_shift = 0;
}

void Scheduler::settle(const ScheduledRow& row, int32_t num_final, std::span<const int32_t> ids) {
  if (cache_ == nullptr) {
    return;
  }
  cache::SequenceLease* pages = at(row).state.pages();
  BALEEN_CHECK(pages != nullptr, "sequence {} holds no pages", row.sequence.value());
  const auto begin = static_cast<size_t>(row.first_position);
  const auto end = begin + static_cast<size_t>(num_final);
  cache_->commit(*pages, ids.subspan(begin, end - begin), end < ids.size() ? ids[end] : -1);
}

void Scheduler::take_tokens(Sequence& sequence, int32_t num_tokens) {
  Decoding* decoding = sequence.state.get<Decoding>();
  BALEEN_CHECK(decoding != nullptr && num_tokens > 0,
               "sequence {} is {}, num_tokens={}",
               sequence.id.value(),
               sequence.state.name(),
               num_tokens);
  BALEEN_CHECK(decoding->pending > 0, "sequence {} has no row in flight", sequence.id.value());
  --decoding->pending;
  decoding->length += num_tokens;
}

void Scheduler::accept(const ScheduledRow& row, int32_t num_tokens) {
  take_tokens(at(row), num_tokens);
}

void Scheduler::accept(SequenceId id, int32_t num_tokens) {
  take_tokens(find(id), num_tokens);
}

/// The sequence does not run any more; the caller frees what it holds.
void Scheduler::leave(Sequence& sequence) {
  running_.erase(std::find(running_.begin(), running_.end(), &sequence));
  by_slot_[static_cast<size_t>(sequence.state.slot().value())] = nullptr;
  take_copy(sequence.state.slot(), nullptr);
}

void Scheduler::remove(SequenceId id, Ending ending) {
  Sequence& sequence = find(id);
  if (sequence.state.is<Waiting>()) {
    queue_.erase(id);
  } else {
    leave(sequence);
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
  queue_.forget(id);
  sequences_.erase(id);
}

int64_t Scheduler::num_used_tokens() const {
  int64_t total = 0;
  for (const Sequence* sequence : running_) {
    const SequenceState& state = sequence->state;
    if (const auto* prefilling = state.get<Prefilling>()) {
      total += prefilling->num_done;
    } else if (const auto* decoding = state.get<Decoding>()) {
      total += decoding->length;
    }
  }
  return total;
}

const SequenceState& Scheduler::state(SequenceId id) const {
  return find(id).state;
}

void Scheduler::check_invariants() const {
  BALEEN_CHECK(static_cast<int32_t>(sequences_.size()) == num_waiting() + num_running(),
               "{} sequences, {} waiting, {} running",
               sequences_.size(),
               num_waiting(),
               num_running());
  BALEEN_CHECK(num_running() + slots_.num_free() == slots_.num_slots(),
               "{} running and {} free of {} slots",
               num_running(),
               slots_.num_free(),
               slots_.num_slots());
  std::vector<bool> held(static_cast<size_t>(slots_.num_slots()), false);
  for (const Sequence* sequence : running_) {
    const RequestSlot slot = sequence->state.slot();
    BALEEN_CHECK(slot.valid() && !held[static_cast<size_t>(slot.value())],
                 "slot {} of sequence {} is invalid or shared",
                 slot.value(),
                 sequence->id.value());
    held[static_cast<size_t>(slot.value())] = true;
    BALEEN_CHECK(by_slot_[static_cast<size_t>(slot.value())] == sequence,
                 "slot {} is not noted as sequence {}'s",
                 slot.value(),
                 sequence->id.value());
  }
  BALEEN_CHECK(std::count(by_slot_.begin(), by_slot_.end(), nullptr) == slots_.num_free(),
               "{} slots are free",
               slots_.num_free());
  for (const auto& [id, sequence] : sequences_) {
    BALEEN_CHECK(sequence.state.is<Waiting>() ==
                     (std::find(running_.begin(), running_.end(), &sequence) == running_.end()),
                 "sequence {} is {}",
                 id.value(),
                 sequence.state.name());
  }
}

}  // namespace baleen::engine
