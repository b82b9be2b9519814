#pragma once
// Steps and copies in flight, and what must not be reused before they end. A completion that is
// unknown or comes twice is counted by the caller and changes nothing. Owned by SequenceCache; the
// engine's thread.
//
//   CacheTicket ticket = tickets.open();
//   tickets.find(ticket)->full_pages.push_back(page);     // held
//   tickets.close(ticket);

#include <cstdint>
#include <vector>

#include "cache/pool.h"

namespace baleen::cache {

struct TicketHolds {
  std::vector<FullPage> full_pages;    // held in the book
  std::vector<SwaPage> swa_pages;      // the same
  std::vector<FullPage> nodes;         // path locks
  std::vector<FullPage> windows;       // window locks
  std::vector<CheckpointSlot> pins;    // resume points being read
  std::vector<CheckpointSlot> writes;  // resume points being written

  void clear() {
    full_pages.clear();
    swa_pages.clear();
    nodes.clear();
    windows.clear();
    pins.clear();
    writes.clear();
  }
};

class TicketTable {
 public:
  CacheTicket open() {
    if (free_.empty()) {
      free_.push_back(static_cast<int32_t>(entries_.size()));
      entries_.emplace_back();
    }
    const int32_t at = free_.back();
    free_.pop_back();
    Entry& entry = entries_[static_cast<size_t>(at)];
    entry.is_open = true;
    ++entry.generation;
    ++num_open_;
    return CacheTicket((entry.generation << kIndexBits) | at);
  }

  /// Null for a ticket that is not open.
  TicketHolds* find(CacheTicket ticket) {
    const int64_t at = ticket.value() & ((int64_t{1} << kIndexBits) - 1);
    if (!ticket.valid() || at >= static_cast<int64_t>(entries_.size())) {
      return nullptr;
    }
    Entry& entry = entries_[static_cast<size_t>(at)];
    return entry.is_open && entry.generation == ticket.value() >> kIndexBits ? &entry.holds
                                                                             : nullptr;
  }
  bool is_open(CacheTicket ticket) { return find(ticket) != nullptr; }

  /// The holds must have been given back.
  void close(CacheTicket ticket) {
    const auto at = static_cast<int32_t>(ticket.value() & ((int64_t{1} << kIndexBits) - 1));
    Entry& entry = entries_[static_cast<size_t>(at)];
    entry.is_open = false;
    entry.holds.clear();
    free_.push_back(at);
    --num_open_;
  }

  int32_t num_open() const { return num_open_; }
  template <class Visit>
  void for_each_open(Visit&& visit) const {
    for (const Entry& entry : entries_) {
      if (entry.is_open) {
        visit(entry.holds);
      }
    }
  }

 private:
  static constexpr int kIndexBits = 20;
  struct Entry {
    TicketHolds holds;
    int64_t generation = 0;
    bool is_open = false;
  };

  std::vector<Entry> entries_;
  std::vector<int32_t> free_;
  int32_t num_open_ = 0;
};

}  // namespace baleen::cache
