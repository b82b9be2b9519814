#include "engine/scheduler.h"

#include <algorithm>

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

void Scheduler::plan(std::vector<ScheduledRow>& rows) const {
  rows.clear();
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
  // Sequences under way keep a token each, whatever the earlier ones could use.
  int32_t num_prefilling = num_running() - static_cast<int32_t>(rows.size());
  const auto add_prefill = [&](SequenceId id, RequestSlot slot, int32_t num_done, bool begins) {
    const int32_t num_left = find(id).num_prompt_tokens - num_done;
    const int32_t num_tokens =
        std::min({num_left, config_.max_prefill_chunk, budget - std::max(num_prefilling - 1, 0)});
    rows.push_back({.sequence = id,
                    .slot = slot,
                    .kind = RowKind::kPrefill,
                    .first_position = num_done,
                    .num_tokens = num_tokens,
                    .begins = begins,
                    .completes_prompt = num_tokens == num_left});
    budget -= num_tokens;
    --num_prefilling;
  };
  for (const SequenceId id : running_) {
    if (const auto* prefilling = find(id).state.get<Prefilling>()) {
      add_prefill(id, prefilling->slot.slot(), prefilling->num_done, false);
    }
  }
  int32_t num_admitted = 0;
  for (const SequenceId id : waiting_) {
    if (budget <= 0 || num_admitted == slots_.num_free()) {
      break;
    }
    add_prefill(id, slots_.peek(num_admitted), 0, true);
    ++num_admitted;
  }
}

void Scheduler::commit(const std::vector<ScheduledRow>& rows) {
  for (const ScheduledRow& row : rows) {
    Sequence& sequence = find(row.sequence);
    if (row.begins) {
      BALEEN_CHECK(!waiting_.empty() && waiting_.front() == row.sequence,
                   "sequence {} is not first in the queue",
                   row.sequence.value());
      waiting_.pop_front();
      sequence.state.to_prefilling(slots_.lease());
      running_.push_back(row.sequence);
    }
    BALEEN_CHECK(sequence.state.slot() == row.slot,
                 "plan is out of date: slot {} planned, {} held",
                 row.slot.value(),
                 sequence.state.slot().value());
    if (row.kind == RowKind::kPrefill) {
      sequence.state.get<Prefilling>()->num_done += row.num_tokens;
      if (row.completes_prompt) {
        sequence.state.to_decoding();
      }
    }
  }
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

void Scheduler::remove(SequenceId id) {
  Sequence& sequence = find(id);
  if (sequence.state.is<Waiting>()) {
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), id));
  } else {
    running_.erase(std::find(running_.begin(), running_.end(), id));
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
