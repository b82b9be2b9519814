#pragma once
// The candidates of one eviction policy, least recently used first; among those used at the same
// time the one nearer the root first. An id is in the heap at most once. Nothing is allocated after
// construction. One thread.
//
//   LruHeap heap(num_pages);
//   heap.put(page, {.stamp = now, .depth = 3});   // inserts, or moves
//   int32_t oldest = heap.top();                  // -1: empty

#include <compare>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"

namespace baleen::cache {

class LruHeap {
 public:
  struct Key {
    int64_t stamp = 0;
    int32_t depth = 0;
    friend auto operator<=>(const Key&, const Key&) = default;
  };

  explicit LruHeap(int32_t num_ids) : where_(static_cast<size_t>(num_ids), -1) {
    entries_.reserve(static_cast<size_t>(num_ids));
  }

  void put(int32_t id, Key key) {
    int32_t at = where_[static_cast<size_t>(id)];
    if (at < 0) {
      at = size();
      entries_.push_back({key, id});
      where_[static_cast<size_t>(id)] = at;
      rise(at);
      return;
    }
    entry(at).key = key;
    rise(at);
    sink(where_[static_cast<size_t>(id)]);
  }

  void erase(int32_t id) {
    const int32_t at = where_[static_cast<size_t>(id)];
    if (at < 0) {
      return;
    }
    swap(at, size() - 1);
    entries_.pop_back();
    where_[static_cast<size_t>(id)] = -1;
    if (at < size()) {
      const int32_t moved = entry(at).id;
      rise(at);
      sink(where_[static_cast<size_t>(moved)]);
    }
  }

  bool contains(int32_t id) const { return where_[static_cast<size_t>(id)] >= 0; }
  int32_t size() const { return static_cast<int32_t>(entries_.size()); }
  int32_t top() const { return entries_.empty() ? -1 : entries_.front().id; }
  Key key_of(int32_t id) const {
    return entries_[static_cast<size_t>(where_[static_cast<size_t>(id)])].key;
  }

  /// The least recent id that `wanted` accepts; looks at all, -1: none. For rare searches.
  template <class Wanted>
  int32_t oldest(Wanted&& wanted) const {
    const Entry* best = nullptr;
    for (const Entry& candidate : entries_) {
      if ((best == nullptr || candidate.key < best->key) && wanted(candidate.id)) {
        best = &candidate;
      }
    }
    return best == nullptr ? -1 : best->id;
  }

 private:
  struct Entry {
    Key key;
    int32_t id = -1;
  };

  Entry& entry(int32_t at) { return entries_[static_cast<size_t>(at)]; }

  void swap(int32_t a, int32_t b) {
    std::swap(entry(a), entry(b));
    where_[static_cast<size_t>(entry(a).id)] = a;
    where_[static_cast<size_t>(entry(b).id)] = b;
  }

  void rise(int32_t at) {
    while (at > 0 && entry(at).key < entry((at - 1) / 2).key) {
      swap(at, (at - 1) / 2);
      at = (at - 1) / 2;
    }
  }

  void sink(int32_t at) {
    for (;;) {
      int32_t least = at;
      for (int32_t child = 2 * at + 1; child <= 2 * at + 2 && child < size(); ++child) {
        if (entry(child).key < entry(least).key) {
          least = child;
        }
      }
      if (least == at) {
        return;
      }
      swap(at, least);
      at = least;
    }
  }

  std::vector<Entry> entries_;
  std::vector<int32_t> where_;
};

}  // namespace baleen::cache
