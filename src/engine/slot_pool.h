#pragma once
// The executor's request slots as leases. The pool outlives its leases (checked when it dies). One
// thread. Slots are handed out lowest number first, so that a quiet engine stays in few rows.
//
//   SlotPool pool(64);
//   SlotLease lease = pool.lease();   // frees its slot when destroyed

#include <cstdint>
#include <utility>
#include <vector>

#include "base/strong_id.h"

namespace baleen::engine {

class SlotPool;

/// Owns one slot until destroyed or moved from.
class SlotLease {
 public:
  SlotLease() = default;
  SlotLease(SlotLease&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), slot_(std::exchange(other.slot_, {})) {}
  SlotLease& operator=(SlotLease&& other) noexcept;
  SlotLease(const SlotLease&) = delete;
  SlotLease& operator=(const SlotLease&) = delete;
  ~SlotLease() { release(); }

  RequestSlot slot() const { return slot_; }

 private:
  friend class SlotPool;
  SlotLease(SlotPool* pool, RequestSlot slot) : pool_(pool), slot_(slot) {}
  void release() noexcept;

  SlotPool* pool_ = nullptr;
  RequestSlot slot_;
};

class SlotPool {
 public:
  explicit SlotPool(int32_t num_slots);
  ~SlotPool();
  SlotPool(const SlotPool&) = delete;
  SlotPool& operator=(const SlotPool&) = delete;

  int32_t num_slots() const { return num_slots_; }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  /// The slot that the (k+1)-th next lease() gives if nothing is freed before; k < num_free().
  RequestSlot peek(int32_t k) const;
  /// At least one slot must be free.
  SlotLease lease();

 private:
  friend class SlotLease;
  void give_back(RequestSlot slot) noexcept;

  int32_t num_slots_;
  std::vector<RequestSlot> free_;  // descending, so that the lowest is at the back
};

}  // namespace baleen::engine
