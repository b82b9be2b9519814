#pragma once
// The states of one sequence and the legal ways between them. A state owns exactly the leases it
// needs; a transition takes the old state by && and its leases move along or are freed. What is not
// declared here does not compile; asking a SequenceState for a transition that its present state
// does not have throws StateError with both names. Later leases (cache pages) join the same
// structs. Without a paged cache the page leases are empty.
//
//   SequenceState state;                  // waiting
//   state.to_prefilling(pool.lease(), std::move(pages));
//   state.to_finished();                  // the slot is free again

#include <cstdint>
#include <type_traits>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "base/error.h"
#include "cache/sequence_cache.h"
#include "engine/slot_pool.h"

namespace baleen::engine {

struct Waiting {
  static constexpr const char* kName = "waiting";
};
struct Prefilling {
  static constexpr const char* kName = "prefilling";
  SlotLease slot;
  cache::SequenceLease pages;
  int32_t num_done = 0;  // prompt tokens that have run or came from the cache
  bool fresh = true;     // no row yet: the first one begins the slot
};
struct Decoding {
  static constexpr const char* kName = "decoding";
  SlotLease slot;
  cache::SequenceLease pages;
  int32_t length = 0;   // tokens of the sequence; its last one has not run yet, except right after
                        // the prompt, when the first token is still to come
  int32_t pending = 0;  // rows in flight that draw
  int32_t last_row = -1;    // the row of the latest committed step that has this sequence
  int32_t last_drafts = 0;  // of that row

  /// Positions by which the next row may lie behind the place where one accepted token puts it.
  int32_t most_shift() const { return pending > 0 ? last_drafts : 0; }
};
struct Finished {
  static constexpr const char* kName = "finished";
};

inline Prefilling admit(Waiting&&, SlotLease&& slot, cache::SequenceLease&& pages) {
  const int32_t num_cached = pages.valid() ? pages.cached_tokens() : 0;
  return {std::move(slot), std::move(pages), num_cached};
}
inline Decoding begin_decoding(Prefilling&& old) {
  return {std::move(old.slot), std::move(old.pages), old.num_done};
}
/// Back to the queue: the slot is free, the pages go to the caller, who preempts them.
inline Waiting preempt(Prefilling&& old, cache::SequenceLease& pages) {
  const SlotLease freed = std::move(old.slot);
  pages = std::move(old.pages);
  return {};
}
inline Waiting preempt(Decoding&& old, cache::SequenceLease& pages) {
  const SlotLease freed = std::move(old.slot);
  pages = std::move(old.pages);
  return {};
}
inline Finished finish(Waiting&&) {
  return {};
}
inline Finished finish(Prefilling&& old) {
  const SlotLease freed = std::move(old.slot);
  return {};
}
inline Finished finish(Decoding&& old) {
  const SlotLease freed = std::move(old.slot);
  return {};
}

class StateError : public Error {
 public:
  using Error::Error;
};

class SequenceState {
 public:
  template <class State>
  bool is() const {
    return std::holds_alternative<State>(value_);
  }
  template <class State>
  const State* get() const {
    return std::get_if<State>(&value_);
  }
  template <class State>
  State* get() {
    return std::get_if<State>(&value_);
  }
  const char* name() const {
    return std::visit([](const auto& state) { return state.kName; }, value_);
  }
  /// Invalid when the state holds none.
  RequestSlot slot() const {
    if (const auto* prefilling = get<Prefilling>()) {
      return prefilling->slot.slot();
    }
    if (const auto* decoding = get<Decoding>()) {
      return decoding->slot.slot();
    }
    return {};
  }

  /// The pages of a running sequence, null for any other.
  cache::SequenceLease* pages() {
    if (auto* prefilling = get<Prefilling>()) {
      return &prefilling->pages;
    }
    auto* decoding = get<Decoding>();
    return decoding == nullptr ? nullptr : &decoding->pages;
  }

  /// Waiting -> Prefilling.
  void to_prefilling(SlotLease&& slot, cache::SequenceLease&& pages = {}) {
    value_ = admit(take<Waiting>(Prefilling::kName), std::move(slot), std::move(pages));
  }
  /// Prefilling or Decoding -> Waiting; gives the pages back.
  cache::SequenceLease to_waiting() {
    cache::SequenceLease pages;
    if (is<Prefilling>()) {
      value_ = preempt(take<Prefilling>(Waiting::kName), pages);
    } else {
      value_ = preempt(take<Decoding>(Waiting::kName), pages);
    }
    return pages;
  }
  /// Prefilling -> Decoding.
  void to_decoding() { value_ = begin_decoding(take<Prefilling>(Decoding::kName)); }
  /// Any live state -> Finished; frees the slot.
  void to_finished() {
    if (is<Finished>()) {
      refuse(Finished::kName);
    }
    value_ = std::visit(
        [](auto&& state) -> Finished {
          if constexpr (std::is_same_v<std::decay_t<decltype(state)>, Finished>) {
            return {};
          } else {
            return finish(std::move(state));
          }
        },
        std::move(value_));
  }

 private:
  template <class State>
  State take(const char* to) {
    if (!is<State>()) {
      refuse(to);
    }
    return std::get<State>(std::move(value_));
  }
  [[noreturn]] void refuse(const char* to) const {
    throw StateError(fmt::format("illegal transition of a sequence: {} -> {}", name(), to));
  }

  std::variant<Waiting, Prefilling, Decoding, Finished> value_;
};

}  // namespace baleen::engine
