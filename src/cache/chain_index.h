#pragma once
// From a 64-bit hash to the ids that have it. Ids are small numbers fixed at construction, each is
// listed at most once; nothing is allocated afterwards. One thread.
//
//   ChainIndex index(num_pages);
//   index.insert(hash, page);
//   int32_t page = index.find(hash, [&](int32_t id) { return same(id); });   // -1: none

#include <bit>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace baleen::cache {

class ChainIndex {
 public:
  explicit ChainIndex(int32_t num_ids)
      : heads_(std::bit_ceil(static_cast<uint64_t>(num_ids) + 1), -1),
        links_(static_cast<size_t>(num_ids)) {}

  void insert(uint64_t hash, int32_t id) {
    Link& link = links_[static_cast<size_t>(id)];
    BALEEN_DCHECK(!link.listed, "id={}", id);
    int32_t& head = heads_[bucket(hash)];
    link = {.hash = hash, .next = head, .listed = true};
    head = id;
  }

  void erase(int32_t id) {
    Link& link = links_[static_cast<size_t>(id)];
    BALEEN_CHECK(link.listed, "id={} is not in the index", id);
    int32_t* at = &heads_[bucket(link.hash)];
    while (*at != id) {
      at = &links_[static_cast<size_t>(*at)].next;
    }
    *at = link.next;
    link = {};
  }

  /// The first id with this hash for which `same` holds.
  template <class Same>
  int32_t find(uint64_t hash, Same&& same) const {
    for (int32_t id = heads_[bucket(hash)]; id >= 0;) {
      const Link& link = links_[static_cast<size_t>(id)];
      if (link.hash == hash && same(id)) {
        return id;
      }
      id = link.next;
    }
    return -1;
  }

  bool contains(int32_t id) const { return links_[static_cast<size_t>(id)].listed; }

 private:
  struct Link {
    uint64_t hash = 0;
    int32_t next = -1;
    bool listed = false;
  };

  size_t bucket(uint64_t hash) const { return static_cast<size_t>(hash & (heads_.size() - 1)); }

  std::vector<int32_t> heads_;
  std::vector<Link> links_;
};

}  // namespace baleen::cache
