#pragma once
// What a router needs to know of this cache: which blocks of 256 tokens it holds. A bounded queue;
// when nobody reads it in time, its content is replaced by one `cleared`, and the next reading
// lists everything that is held then. Owned by ShadowRadix; the engine's thread.
//
//   EventQueue events(4096, page_tokens);
//   std::vector<CacheEvent> batch = events.take();

#include <cstdint>
#include <deque>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

namespace baleen::cache {

struct CacheEvent {
  enum class Kind : uint8_t { kStored, kRemoved, kCleared };
  Kind kind = Kind::kStored;
  uint64_t block_hash = 0;   // of the block and all before it, namespace included
  uint64_t parent_hash = 0;  // stored: of the block before; of the namespace at a sequence's begin
  std::vector<int32_t> ids;  // stored: the tokens of the block
};

class EventQueue {
 public:
  /// `capacity` 0: events are off.
  explicit EventQueue(int32_t capacity) : capacity_(static_cast<size_t>(capacity)) {}

  bool enabled() const { return capacity_ > 0; }
  bool overflowed() const { return overflowed_; }

  void stored(uint64_t block_hash, uint64_t parent_hash, std::span<const int32_t> ids) {
    push({CacheEvent::Kind::kStored, block_hash, parent_hash, {ids.begin(), ids.end()}});
  }
  void removed(uint64_t block_hash) { push({CacheEvent::Kind::kRemoved, block_hash, 0, {}}); }
  void cleared() { push({CacheEvent::Kind::kCleared, 0, 0, {}}); }

  std::vector<CacheEvent> take() {
    overflowed_ = false;
    std::vector<CacheEvent> events(std::make_move_iterator(events_.begin()),
                                   std::make_move_iterator(events_.end()));
    events_.clear();
    return events;
  }

 private:
  void push(CacheEvent event) {
    if (!enabled() || overflowed_) {
      return;
    }
    if (events_.size() < capacity_) {
      events_.push_back(std::move(event));
      return;
    }
    // The reader is told to forget everything; ShadowRadix lists the tree anew when it reads.
    events_.clear();
    events_.push_back({CacheEvent::Kind::kCleared, 0, 0, {}});
    overflowed_ = true;
  }

  size_t capacity_;
  bool overflowed_ = false;
  std::deque<CacheEvent> events_;
};

}  // namespace baleen::cache
