#pragma once
// ShadowRadix: one tree over virtual slots, whose pages cast shadows into every physical pool. The
// virtual slot of position q is page * 256 + q mod 256; entries of compressed layers lie at slot /
// 4 and slot / 128, window rows at the page that the table M gives, ring rows nested in that page.
// This class joins the tree, the page pools and the resume points: match, make room, give up what
// became useless. Sequences use it through SequenceCache. The engine's thread.
//
//   PrefixMatch match = radix.match(space, ids, limit);      // changes nothing
//   bool fits = radix.make_room(full_pages, swa_pages);

#include <cstdint>
#include <span>
#include <vector>

#include "cache/cache_events.h"
#include "cache/cache_geometry.h"
#include "cache/cache_stats.h"
#include "cache/namespace_table.h"
#include "cache/page_book.h"
#include "cache/point_table.h"
#include "cache/radix_tree.h"

namespace baleen::cache {

struct ShadowRadixSizes {
  int32_t full_pages = 0;
  int32_t swa_pages = 0;
  int32_t checkpoint_slots = 0;
  int32_t open_group_blocks = 0;
  int32_t event_capacity = 0;  // 0: no events
};

/// What of a sequence need not be computed again.
struct PrefixMatch {
  int32_t hit = 0;       // tokens; the first one to compute
  FullPage node{0};      // where the hit's pages end; for a point, the node that it hangs on
  CheckpointSlot point;  // valid: resume there, else continue behind live pages
  int32_t common = 0;    // tokens that the tree shares with the sequence
  CutReason reason = CutReason::kNone;
  int32_t branch = -1;  // worth a resume point: others will part here too; -1: none
};

class ShadowRadix {
 public:
  /// `observer` may be null and outlives this object. Throws ConfigError for a bad geometry.
  ShadowRadix(const CacheGeometry& geometry, const ShadowRadixSizes& sizes, PageObserver* observer);
  ShadowRadix(const ShadowRadix&) = delete;
  ShadowRadix& operator=(const ShadowRadix&) = delete;

  const CacheGeometry& geometry() const { return geometry_; }
  PageBook& book() { return book_; }
  const PageBook& book() const { return book_; }
  RadixTree& tree() { return tree_; }
  const RadixTree& tree() const { return tree_; }
  PointTable& points() { return points_; }
  const PointTable& points() const { return points_; }
  NamespaceTable& spaces() { return spaces_; }
  const NamespaceTable& spaces() const { return spaces_; }
  CacheStats& stats() { return stats_; }
  const CacheStats& stats() const { return stats_; }

  /// `limit`: most tokens of a hit, below the number of ids.
  PrefixMatch match(NamespaceId space, std::span<const int32_t> ids, int32_t limit) const;

  /// Evicts until so many pages are free. False, and nothing is evicted, if that is impossible.
  bool make_room(int32_t full_pages, int32_t swa_pages);
  /// Evicts points until a slot and so many open-group blocks are free. False if that is
  /// impossible; `skip` then says why.
  bool make_point_room(int32_t open_blocks, CaptureSkip& skip);

  /// One user less on the path to `node`; what this leaves useless goes.
  void unlock(FullPage node);
  /// Removes the point and what this leaves useless.
  void remove_point(CheckpointSlot slot);
  /// Locks the path of the point and keeps it until `unpin`.
  void pin(CheckpointSlot slot);
  void unpin(CheckpointSlot slot);
  /// Deletes a node that nobody can continue behind, use or extend, and such ancestors.
  void prune(FullPage node);
  /// Gives up everything that is not in use.
  void flush();

  std::vector<CacheEvent> take_events();

 private:
  bool evict_leaf();
  bool evict_window();
  bool evict_head();
  void drop_points(FullPage node);
  CutReason reason_of(const PrefixMatch& match, int32_t aligned, int32_t limit) const;

  CacheGeometry geometry_;
  NamespaceTable spaces_;
  EventQueue events_;
  PageBook book_;
  RadixTree tree_;
  PointTable points_;
  CacheStats stats_;
};

}  // namespace baleen::cache
