#pragma once
// The prefix tree over full pages. A node is one page: 256 consecutive, page-aligned positions of
// every sequence that passes through it, and its id is the page itself. So nothing is ever split or
// compacted, a lock covers exactly what it needs, and all of the tree lies in flat arrays. A node
// without window rows is a tombstone: its compressed entries serve longer prefixes, but no sequence
// can continue right behind it. Page 0 is the root. Owned by ShadowRadix; the engine's thread.
//
//   RadixTree::Walk walk = tree.walk(space, ids, limit);
//   tree.lock(walk.safe, RadixTree::kRoot);
//   FullPage node = tree.insert(parent, space, std::move(lease));

#include <cstdint>
#include <span>
#include <vector>

#include "cache/cache_events.h"
#include "cache/cache_geometry.h"
#include "cache/chain_index.h"
#include "cache/lru_heap.h"
#include "cache/namespace_table.h"
#include "cache/page_book.h"
#include "cache/pool.h"

namespace baleen::cache {

class RadixTree {
 public:
  static constexpr FullPage kRoot{0};

  struct Node {
    FullPage parent;
    FullPage first_child;  // invalid: a leaf
    FullPage next_sibling;
    FullPage previous_sibling;
    int32_t depth = 0;  // blocks from the root
    int32_t num_points = 0;
    NamespaceId space;
    uint64_t hash = 0;      // of the namespace and all ids up to the node's end
    int64_t stamp = 0;      // last use
    int64_t swa_stamp = 0;  // last use of its window rows
  };

  /// How far a key agrees with the tree.
  struct Walk {
    FullPage node{0};         // deepest node whose ids the key has
    FullPage safe{0};         // deepest one, ending at or before the limit, that has its window
    int32_t common = 0;       // tokens up to `node`
    int32_t safe_tokens = 0;  // tokens up to `safe`
  };

  RadixTree(const CacheGeometry& geometry,
            PageBook& book,
            NamespaceTable& spaces,
            EventQueue& events);
  RadixTree(const RadixTree&) = delete;
  RadixTree& operator=(const RadixTree&) = delete;

  const Node& node(FullPage id) const { return nodes_[index(id)]; }
  int32_t end_of(FullPage id) const { return node(id).depth * geometry_.page_tokens; }
  bool is_leaf(FullPage id) const { return !node(id).first_child.valid(); }
  bool is_live(FullPage id) const { return id == kRoot || book_.swa_of(id).value() != 0; }
  int32_t num_nodes() const { return num_nodes_; }

  /// Changes nothing. The limit bounds `safe` only.
  Walk walk(NamespaceId space, std::span<const int32_t> ids, int32_t limit) const;
  /// The child whose block is ids[0, page); invalid if there is none.
  FullPage child(FullPage parent, NamespaceId space, const int32_t* ids) const;
  /// Whether some child begins with ids[0, page / 2).
  bool half_child(FullPage parent, NamespaceId space, const int32_t* ids) const;

  /// The page, whose ids are written, becomes a child that does not exist yet.
  FullPage insert(FullPage parent, NamespaceId space, PageLease page);
  /// Takes out an unlocked leaf without resume points.
  void erase(FullPage id);

  /// One more user of the path from below `above`, an ancestor that the user has locked already, to
  /// `id`.
  void lock(FullPage id, FullPage above);
  /// One user less on the whole path, which counts as used now. Nodes that this leaves useless
  /// stay: see ShadowRadix::unlock.
  void unlock(FullPage id);
  /// One more reader of the window before the end of `id`; it must be live there.
  void lock_window(FullPage id);
  void unlock_window(FullPage id);

  void release_swa(FullPage id);               // becomes a tombstone
  void adopt_swa(FullPage id, FullPage from);  // takes over a private page's window rows
  void touch_window(FullPage id);              // the window before its end was used
  void add_points(FullPage id, int32_t count) { nodes_[index(id)].num_points += count; }
  int64_t tick() { return ++clock_; }
  int64_t now() const { return clock_; }

  int32_t oldest_leaf() const { return leaves_.top(); }     // unlocked; -1: none
  int32_t oldest_window() const { return windows_.top(); }  // unlocked, live; -1: none
  const LruHeap& leaves() const { return leaves_; }
  const LruHeap& windows() const { return windows_; }
  uint64_t root_hash(NamespaceId space) const { return spaces_.hash(space); }
  uint64_t chain_hash(uint64_t before, const int32_t* ids, int32_t count) const;
  /// Lists all nodes as stored blocks, parents first.
  void list_all(std::vector<CacheEvent>& events) const;

 private:
  static size_t index(FullPage id) { return static_cast<size_t>(id.value()); }
  Node& at(FullPage id) { return nodes_[index(id)]; }
  uint64_t hash_before(FullPage parent, NamespaceId space) const {
    return parent == kRoot ? root_hash(space) : node(parent).hash;
  }
  bool same_ids(FullPage id, const int32_t* ids, int32_t count) const;
  void refresh(FullPage id);         // its place among the leaves
  void refresh_window(FullPage id);  // its place among the windows
  template <class Visit>
  void for_window(FullPage id, Visit&& visit);

  CacheGeometry geometry_;
  PageBook& book_;
  NamespaceTable& spaces_;
  EventQueue& events_;
  std::vector<Node> nodes_;
  ChainIndex blocks_;  // by chain hash
  ChainIndex halves_;  // by chain hash of the first half block
  LruHeap leaves_;
  LruHeap windows_;
  int64_t clock_ = 0;
  int32_t num_nodes_ = 0;
};

}  // namespace baleen::cache
