#pragma once
// The resume points, numbered like their checkpoint slots, and where they hang on the tree. Keeps
// free slots and open-group blocks, finds points by the ids after their node, and knows the least
// recently used ones. Owned by ShadowRadix; the engine's thread.
//
//   CheckpointSlot slot = points.take(num_open_blocks);          // room must be there
//   points.at(slot).node = ...; points.show(slot, now);
//   CheckpointSlot hit = points.deepest(node, space, ids_after_node, most_tokens);

#include <cstdint>
#include <vector>

#include "cache/cache_geometry.h"
#include "cache/chain_index.h"
#include "cache/lru_heap.h"
#include "cache/page_book.h"
#include "cache/radix_tree.h"
#include "cache/resume_point.h"

namespace baleen::cache {

class PointTable {
 public:
  PointTable(const CacheGeometry& geometry,
             int32_t num_slots,
             int32_t num_open_blocks,
             PageBook& book,
             RadixTree& tree,
             NamespaceTable& spaces,
             PageObserver* observer);
  PointTable(const PointTable&) = delete;
  PointTable& operator=(const PointTable&) = delete;

  ResumePoint& at(CheckpointSlot slot) { return points_[index(slot)]; }
  const ResumePoint& at(CheckpointSlot slot) const { return points_[index(slot)]; }
  int32_t num_slots() const { return static_cast<int32_t>(points_.size()); }
  int32_t num_open_blocks() const { return num_open_blocks_; }
  int32_t free_slots() const { return static_cast<int32_t>(free_slots_.size()); }
  int32_t free_open_blocks() const { return static_cast<int32_t>(free_blocks_.size()); }
  const std::vector<CheckpointSlot>& free_slot_list() const { return free_slots_; }
  const std::vector<OpenGroupBlock>& free_block_list() const { return free_blocks_; }

  /// A pending point; a free slot and enough free blocks must exist.
  CheckpointSlot take(int32_t num_open_blocks);
  /// Makes a pending point, whose node, head and position are set, visible. Takes over a head
  /// reference that the caller has added.
  void show(CheckpointSlot slot, int64_t stamp);
  /// Takes a visible, unpinned point off the tree, drops its head, frees slot and blocks. The node
  /// may have become useless: see ShadowRadix::prune.
  void remove(CheckpointSlot slot);
  /// Frees slot and blocks of a point that is not visible.
  void free(CheckpointSlot slot);

  void pin(CheckpointSlot slot);
  void unpin(CheckpointSlot slot);
  void touch(CheckpointSlot slot, int64_t stamp);

  /// The visible point at `node` with the most ids after it, at most `most`, all equal to `ids`;
  /// invalid if there is none.
  CheckpointSlot deepest(FullPage node, NamespaceId space, const int32_t* ids, int32_t most) const;
  /// The visible point at exactly this place.
  CheckpointSlot find(FullPage node, NamespaceId space, const int32_t* ids, int32_t count) const;
  /// Whether a visible point's ids after `node` begin with ids[0, page / 2).
  bool half(FullPage node, NamespaceId space, const int32_t* ids) const;

  CheckpointSlot first_at(FullPage node) const { return first_[static_cast<size_t>(node.value())]; }
  CheckpointSlot next_at(CheckpointSlot slot) const { return links_[index(slot)].next; }
  const LruHeap& evictable() const { return evictable_; }

 private:
  struct Link {
    CheckpointSlot next;
    CheckpointSlot previous;
  };
  static size_t index(CheckpointSlot slot) { return static_cast<size_t>(slot.value()); }
  int32_t extra_of(const ResumePoint& point) const;
  uint64_t hash(FullPage node, NamespaceId space, const int32_t* ids, int32_t count) const;
  void rebuild_mask(FullPage node);

  CacheGeometry geometry_;
  PageBook& book_;
  RadixTree& tree_;
  NamespaceTable& spaces_;
  PageObserver* observer_;
  int32_t num_open_blocks_;
  std::vector<ResumePoint> points_;
  std::vector<Link> links_;
  std::vector<CheckpointSlot> first_;  // by node
  std::vector<uint64_t> masks_;        // by node: bit e / resume_step if a point has e ids after it
  std::vector<CheckpointSlot> free_slots_;
  std::vector<OpenGroupBlock> free_blocks_;
  ChainIndex places_;
  ChainIndex halves_;
  LruHeap evictable_;
};

}  // namespace baleen::cache
