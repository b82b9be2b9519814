#include "engine/slot_pool.h"

#include <algorithm>
#include <functional>

#include "base/check.h"

namespace baleen::engine {

SlotLease& SlotLease::operator=(SlotLease&& other) noexcept {
  if (this != &other) {
    release();
    pool_ = std::exchange(other.pool_, nullptr);
    slot_ = std::exchange(other.slot_, {});
  }
  return *this;
}

void SlotLease::release() noexcept {
  if (pool_ != nullptr) {
    std::exchange(pool_, nullptr)->give_back(std::exchange(slot_, {}));
  }
}

SlotPool::SlotPool(int32_t num_slots) : num_slots_(num_slots) {
  BALEEN_CHECK(num_slots > 0, "num_slots={}", num_slots);
  free_.reserve(static_cast<size_t>(num_slots));
  for (int32_t i = num_slots - 1; i >= 0; --i) {
    free_.push_back(RequestSlot(i));
  }
}

SlotPool::~SlotPool() {
  BALEEN_CHECK(num_free() == num_slots_, "{} leases outlive the pool", num_slots_ - num_free());
}

RequestSlot SlotPool::peek(int32_t k) const {
  BALEEN_CHECK(k >= 0 && k < num_free(), "k={} free={}", k, num_free());
  return free_[free_.size() - 1 - static_cast<size_t>(k)];
}

SlotLease SlotPool::lease() {
  BALEEN_CHECK(!free_.empty(), "no free slot of {}", num_slots_);
  const RequestSlot slot = free_.back();
  free_.pop_back();
  return SlotLease(this, slot);
}

void SlotPool::give_back(RequestSlot slot) noexcept {
  const auto place = std::lower_bound(free_.begin(), free_.end(), slot, std::greater<>());
  BALEEN_CHECK(place == free_.end() || *place != slot, "slot {} freed twice", slot.value());
  free_.insert(place, slot);  // within the reserved capacity
}

}  // namespace baleen::engine
