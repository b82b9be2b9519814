#include "cache/point_table.h"

#include <bit>
#include <cstring>

#include "base/check.h"

namespace baleen::cache {

const char* point_kind_name(PointKind kind) {
  switch (kind) {
    case PointKind::kPrompt:
      return "prompt";
    case PointKind::kTurn:
      return "turn";
    case PointKind::kInterval:
      return "interval";
    case PointKind::kBranch:
      return "branch";
  }
  return "?";
}

PointTable::PointTable(const CacheGeometry& geometry,
                       int32_t num_slots,
                       int32_t num_open_blocks,
                       PageBook& book,
                       RadixTree& tree,
                       NamespaceTable& spaces,
                       PageObserver* observer)
    : geometry_(geometry),
      book_(book),
      tree_(tree),
      spaces_(spaces),
      observer_(observer),
      num_open_blocks_(num_open_blocks),
      points_(static_cast<size_t>(num_slots)),
      links_(static_cast<size_t>(num_slots)),
      first_(static_cast<size_t>(book.num_full()) + 1),
      masks_(static_cast<size_t>(book.num_full()) + 1, 0),
      places_(num_slots),
      halves_(num_slots),
      evictable_(num_slots) {
  free_slots_.reserve(static_cast<size_t>(num_slots));
  free_blocks_.reserve(static_cast<size_t>(num_open_blocks));
  for (int32_t slot = num_slots - 1; slot >= 0; --slot) {
    free_slots_.push_back(CheckpointSlot(slot));
  }
  for (int32_t block = num_open_blocks - 1; block >= 0; --block) {
    free_blocks_.push_back(OpenGroupBlock(block));
  }
}

CheckpointSlot PointTable::take(int32_t num_open_blocks) {
  BALEEN_CHECK(!free_slots_.empty() && num_open_blocks <= free_open_blocks(),
               "free slots={} blocks={} wanted={}",
               free_slots_.size(),
               free_blocks_.size(),
               num_open_blocks);
  const CheckpointSlot slot = free_slots_.back();
  free_slots_.pop_back();
  ResumePoint& point = at(slot);
  point = {};
  point.state = ResumePoint::State::kPending;
  for (; point.num_blocks < num_open_blocks; ++point.num_blocks) {
    point.blocks[static_cast<size_t>(point.num_blocks)] = free_blocks_.back();
    free_blocks_.pop_back();
  }
  return slot;
}

int32_t PointTable::extra_of(const ResumePoint& point) const {
  return point.position % geometry_.page_tokens;
}

uint64_t PointTable::hash(FullPage node,
                          NamespaceId space,
                          const int32_t* ids,
                          int32_t count) const {
  const uint64_t before = node == RadixTree::kRoot ? tree_.root_hash(space) : tree_.node(node).hash;
  return tree_.chain_hash(before, ids, count);
}

void PointTable::show(CheckpointSlot slot, int64_t stamp) {
  ResumePoint& point = at(slot);
  BALEEN_CHECK(point.state == ResumePoint::State::kPending, "slot={}", slot.value());
  const int32_t extra = extra_of(point);
  const int32_t* ids = book_.tokens(point.head);
  places_.insert(hash(point.node, point.space, ids, extra), slot.value());
  if (2 * extra >= geometry_.page_tokens) {
    halves_.insert(hash(point.node, point.space, ids, geometry_.page_tokens / 2), slot.value());
  }
  point.state = ResumePoint::State::kVisible;
  point.owner = RequestSlot();
  point.stamp = stamp;
  CheckpointSlot& first = first_[static_cast<size_t>(point.node.value())];
  links_[index(slot)] = {.next = first, .previous = {}};
  if (first.valid()) {
    links_[index(first)].previous = slot;
  }
  first = slot;
  masks_[static_cast<size_t>(point.node.value())] |= uint64_t{1} << (extra / geometry_.resume_step);
  tree_.add_points(point.node, 1);
  spaces_.add_ref(point.space);
  evictable_.put(slot.value(), {stamp, 0});
}

void PointTable::remove(CheckpointSlot slot) {
  ResumePoint& point = at(slot);
  BALEEN_CHECK(point.state == ResumePoint::State::kVisible && point.pins == 0,
               "slot={} pins={}",
               slot.value(),
               point.pins);
  places_.erase(slot.value());
  if (halves_.contains(slot.value())) {
    halves_.erase(slot.value());
  }
  evictable_.erase(slot.value());
  const Link link = links_[index(slot)];
  if (link.previous.valid()) {
    links_[index(link.previous)].next = link.next;
  } else {
    first_[static_cast<size_t>(point.node.value())] = link.next;
  }
  if (link.next.valid()) {
    links_[index(link.next)].previous = link.previous;
  }
  links_[index(slot)] = {};
  rebuild_mask(point.node);
  tree_.add_points(point.node, -1);
  spaces_.release(point.space);
  if (point.head.value() != 0) {
    book_.drop_head(point.head);
  }
  point.state = ResumePoint::State::kPending;
  free(slot);
}

void PointTable::free(CheckpointSlot slot) {
  ResumePoint& point = at(slot);
  BALEEN_CHECK(
      point.state == ResumePoint::State::kPending || point.state == ResumePoint::State::kDoomed,
      "slot={}",
      slot.value());
  for (const OpenGroupBlock block : point.open_blocks()) {
    free_blocks_.push_back(block);
    if (observer_ != nullptr) {
      observer_->open_block_freed(block);
    }
  }
  point = {};
  free_slots_.push_back(slot);
  if (observer_ != nullptr) {
    observer_->checkpoint_freed(slot);
  }
}

void PointTable::rebuild_mask(FullPage node) {
  uint64_t mask = 0;
  for (CheckpointSlot slot = first_at(node); slot.valid(); slot = next_at(slot)) {
    mask |= uint64_t{1} << (extra_of(at(slot)) / geometry_.resume_step);
  }
  masks_[static_cast<size_t>(node.value())] = mask;
}

void PointTable::pin(CheckpointSlot slot) {
  ResumePoint& point = at(slot);
  ++point.pins;
  evictable_.erase(slot.value());
  if (point.head.value() != 0) {
    book_.pin_head(point.head);
  }
}

void PointTable::unpin(CheckpointSlot slot) {
  ResumePoint& point = at(slot);
  BALEEN_CHECK(point.pins > 0, "slot={}", slot.value());
  if (point.head.value() != 0) {
    book_.unpin_head(point.head);
  }
  if (--point.pins == 0) {
    evictable_.put(slot.value(), {point.stamp, 0});
  }
}

void PointTable::touch(CheckpointSlot slot, int64_t stamp) {
  at(slot).stamp = stamp;
  if (evictable_.contains(slot.value())) {
    evictable_.put(slot.value(), {stamp, 0});
  }
}

CheckpointSlot PointTable::find(FullPage node,
                                NamespaceId space,
                                const int32_t* ids,
                                int32_t count) const {
  return CheckpointSlot(places_.find(hash(node, space, ids, count), [&](int32_t candidate) {
    const ResumePoint& point = points_[static_cast<size_t>(candidate)];
    return point.node == node && point.space == space && extra_of(point) == count &&
           std::memcmp(
               book_.tokens(point.head), ids, static_cast<size_t>(count) * sizeof(int32_t)) == 0;
  }));
}

CheckpointSlot PointTable::deepest(FullPage node,
                                   NamespaceId space,
                                   const int32_t* ids,
                                   int32_t most) const {
  uint64_t mask = masks_[static_cast<size_t>(node.value())];
  const int32_t most_steps = most / geometry_.resume_step;
  if (most < 0 || mask == 0) {
    return {};
  }
  if (most_steps < 63) {
    mask &= (uint64_t{1} << (most_steps + 1)) - 1;
  }
  while (mask != 0) {
    const int32_t step = 63 - std::countl_zero(mask);
    const CheckpointSlot slot = find(node, space, ids, step * geometry_.resume_step);
    if (slot.valid()) {
      return slot;
    }
    mask &= ~(uint64_t{1} << step);
  }
  return {};
}

bool PointTable::half(FullPage node, NamespaceId space, const int32_t* ids) const {
  if (!first_at(node).valid()) {
    return false;
  }
  const int32_t count = geometry_.page_tokens / 2;
  return halves_.find(hash(node, space, ids, count), [&](int32_t candidate) {
    const ResumePoint& point = points_[static_cast<size_t>(candidate)];
    return point.node == node && point.space == space &&
           std::memcmp(
               book_.tokens(point.head), ids, static_cast<size_t>(count) * sizeof(int32_t)) == 0;
  }) >= 0;
}

}  // namespace baleen::cache
