#include "cache/shadow_radix.h"

#include <algorithm>

#include "base/check.h"

namespace baleen::cache {
namespace {

const CacheGeometry& validated(const CacheGeometry& geometry) {
  geometry.validate();
  return geometry;
}

}  // namespace

const char* cut_reason_name(CutReason reason) {
  switch (reason) {
    case CutReason::kNone:
      return "none";
    case CutReason::kNoPoint:
      return "no_point";
    case CutReason::kWindowGone:
      return "window_gone";
    case CutReason::kLimit:
      return "limit";
  }
  return "?";
}

const char* capture_skip_name(CaptureSkip reason) {
  switch (reason) {
    case CaptureSkip::kPinned:
      return "pinned";
    case CaptureSkip::kOpenBlocks:
      return "open_blocks";
    case CaptureSkip::kAborted:
      return "aborted";
    case CaptureSkip::kInFlight:
      return "in_flight";
  }
  return "?";
}

ShadowRadix::ShadowRadix(const CacheGeometry& geometry,
                         const ShadowRadixSizes& sizes,
                         PageObserver* observer)
    : geometry_(validated(geometry)),
      events_(sizes.event_capacity),
      book_(sizes.full_pages, sizes.swa_pages, geometry.page_tokens, observer),
      tree_(geometry_, book_, spaces_, events_),
      points_(geometry_,
              sizes.checkpoint_slots,
              sizes.open_group_blocks,
              book_,
              tree_,
              spaces_,
              observer) {}

PrefixMatch ShadowRadix::match(NamespaceId space,
                               std::span<const int32_t> ids,
                               int32_t limit) const {
  PrefixMatch match;
  if (!space.valid()) {
    return match;
  }
  const RadixTree::Walk walk = tree_.walk(space, ids, limit);
  match.hit = walk.safe_tokens;
  match.node = walk.safe;
  // Points: the deepest node first. One that hangs h tokens deep reaches less than h + a page.
  int32_t depth_tokens = walk.common;
  for (FullPage node = walk.node;; node = tree_.node(node).parent) {
    if (depth_tokens + geometry_.page_tokens <= match.hit) {
      break;
    }
    const int32_t most = std::min(limit - depth_tokens, geometry_.page_tokens - 1);
    const CheckpointSlot slot = points_.deepest(node, space, ids.data() + depth_tokens, most);
    if (slot.valid() && points_.at(slot).position > match.hit) {
      match.hit = points_.at(slot).position;
      match.point = slot;
      match.node = node;
      break;
    }
    if (node == RadixTree::kRoot) {
      break;
    }
    depth_tokens -= geometry_.page_tokens;
  }
  const auto num_ids = static_cast<int32_t>(ids.size());
  match.common = walk.common;
  if (geometry_.prompt_step < geometry_.page_tokens &&
      num_ids - walk.common >= geometry_.prompt_step) {
    const int32_t* rest = ids.data() + walk.common;
    if (tree_.half_child(walk.node, space, rest) || points_.half(walk.node, space, rest)) {
      match.common += geometry_.prompt_step;
    }
  }
  match.common = std::max(match.common, match.hit);
  const int32_t branch = match.common / geometry_.prompt_step * geometry_.prompt_step;
  match.branch = branch > match.hit ? branch : -1;
  match.reason = reason_of(match, walk.common, limit);
  return match;
}

CutReason ShadowRadix::reason_of(const PrefixMatch& match, int32_t aligned, int32_t limit) const {
  if (match.common == match.hit) {
    return CutReason::kNone;
  }
  if (geometry_.floor_to_page(std::min(aligned, limit)) > match.hit) {
    return CutReason::kWindowGone;
  }
  const int32_t reachable = std::min(match.common, limit);
  return reachable / geometry_.prompt_step * geometry_.prompt_step > match.hit ? CutReason::kNoPoint
                                                                               : CutReason::kLimit;
}

bool ShadowRadix::make_room(int32_t full_pages, int32_t swa_pages) {
  const auto free_full = [&] { return book_.full_count(PageUse::kFree); };
  const auto free_swa = [&] { return book_.swa_count(PageUse::kFree); };
  if (full_pages > free_full() + book_.full_count(PageUse::kEvictable) ||
      swa_pages > free_swa() + book_.swa_count(PageUse::kEvictable)) {
    return false;
  }
  while (free_full() < full_pages && evict_leaf()) {
  }
  while (free_full() < full_pages && evict_head()) {
  }
  while (free_swa() < swa_pages && evict_window()) {
  }
  BALEEN_CHECK(free_full() >= full_pages && free_swa() >= swa_pages,
               "evictable pages were miscounted: free full={} of {} swa={} of {}",
               free_full(),
               full_pages,
               free_swa(),
               swa_pages);
  return true;
}

bool ShadowRadix::evict_leaf() {
  const int32_t leaf = tree_.oldest_leaf();
  if (leaf < 0) {
    return false;
  }
  const FullPage node(leaf);
  const FullPage parent = tree_.node(node).parent;
  drop_points(node);
  tree_.erase(node);
  ++stats_.evicted_pages;
  prune(parent);
  return true;
}

bool ShadowRadix::evict_head() {
  const int32_t oldest = points_.evictable().oldest(
      [&](int32_t slot) { return points_.at(CheckpointSlot(slot)).head.value() != 0; });
  if (oldest < 0) {
    return false;
  }
  remove_point(CheckpointSlot(oldest));
  ++stats_.evicted_points;
  return true;
}

bool ShadowRadix::evict_window() {
  const int32_t oldest = tree_.oldest_window();
  if (oldest < 0) {
    return false;
  }
  tree_.release_swa(FullPage(oldest));
  ++stats_.evicted_windows;
  prune(FullPage(oldest));  // an unlocked leaf without a point goes altogether
  return true;
}

bool ShadowRadix::make_point_room(int32_t open_blocks, CaptureSkip& skip) {
  const LruHeap& evictable = points_.evictable();
  if (points_.free_slots() == 0) {
    if (evictable.size() == 0) {
      skip = CaptureSkip::kPinned;
      return false;
    }
    ++stats_.evicted_points;
    remove_point(CheckpointSlot(evictable.top()));
  }
  while (points_.free_open_blocks() < open_blocks) {
    const int32_t oldest = evictable.oldest(
        [&](int32_t slot) { return points_.at(CheckpointSlot(slot)).num_blocks > 0; });
    if (oldest < 0) {
      skip = CaptureSkip::kOpenBlocks;
      return false;
    }
    ++stats_.evicted_points;
    remove_point(CheckpointSlot(oldest));
  }
  return true;
}

void ShadowRadix::unlock(FullPage node) {
  tree_.unlock(node);
  prune(node);
}

void ShadowRadix::remove_point(CheckpointSlot slot) {
  const FullPage node = points_.at(slot).node;
  points_.remove(slot);
  prune(node);
}

void ShadowRadix::drop_points(FullPage node) {
  for (CheckpointSlot slot = points_.first_at(node); slot.valid(); slot = points_.first_at(node)) {
    points_.remove(slot);
    ++stats_.evicted_points;
  }
}

void ShadowRadix::pin(CheckpointSlot slot) {
  tree_.lock(points_.at(slot).node, RadixTree::kRoot);
  points_.pin(slot);
}

void ShadowRadix::unpin(CheckpointSlot slot) {
  points_.unpin(slot);
  tree_.unlock(points_.at(slot).node);  // carries a point, so nothing is useless
}

void ShadowRadix::prune(FullPage node) {
  while (node != RadixTree::kRoot && tree_.is_leaf(node) && !tree_.is_live(node) &&
         book_.state(node).full_locks == 0 && tree_.node(node).num_points == 0) {
    const FullPage parent = tree_.node(node).parent;
    tree_.erase(node);
    ++stats_.evicted_pages;
    node = parent;
  }
}

void ShadowRadix::flush() {
  while (evict_leaf()) {
  }
  // Points on locked nodes and on the root.
  while (points_.evictable().size() > 0) {
    ++stats_.evicted_points;
    remove_point(CheckpointSlot(points_.evictable().top()));
  }
  while (evict_window()) {
  }
}

std::vector<CacheEvent> ShadowRadix::take_events() {
  const bool overflowed = events_.overflowed();
  std::vector<CacheEvent> events = events_.take();
  if (overflowed) {
    tree_.list_all(events);
  }
  return events;
}

}  // namespace baleen::cache
