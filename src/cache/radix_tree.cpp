#include "cache/radix_tree.h"

#include <algorithm>
#include <cstring>

#include <xxhash.h>

#include "base/check.h"

namespace baleen::cache {

RadixTree::RadixTree(const CacheGeometry& geometry,
                     PageBook& book,
                     NamespaceTable& spaces,
                     EventQueue& events)
    : geometry_(geometry),
      book_(book),
      spaces_(spaces),
      events_(events),
      nodes_(static_cast<size_t>(book.num_full()) + 1),
      blocks_(book.num_full() + 1),
      halves_(book.num_full() + 1),
      leaves_(book.num_full() + 1),
      windows_(book.num_full() + 1) {}

uint64_t RadixTree::chain_hash(uint64_t before, const int32_t* ids, int32_t count) const {
  return XXH3_64bits_withSeed(ids, static_cast<size_t>(count) * sizeof(int32_t), before);
}

bool RadixTree::same_ids(FullPage id, const int32_t* ids, int32_t count) const {
  return std::memcmp(book_.tokens(id), ids, static_cast<size_t>(count) * sizeof(int32_t)) == 0;
}

FullPage RadixTree::child(FullPage parent, NamespaceId space, const int32_t* ids) const {
  const FullPage first = node(parent).first_child;
  if (!first.valid()) {
    return {};
  }
  const int32_t page_tokens = geometry_.page_tokens;
  if (!node(first).next_sibling.valid()) {  // most nodes have one child: no hash then
    return node(first).space == space && same_ids(first, ids, page_tokens) ? first : FullPage();
  }
  const uint64_t hash = chain_hash(hash_before(parent, space), ids, page_tokens);
  return FullPage(blocks_.find(hash, [&](int32_t candidate) {
    const FullPage id(candidate);
    return node(id).parent == parent && node(id).space == space && same_ids(id, ids, page_tokens);
  }));
}

bool RadixTree::half_child(FullPage parent, NamespaceId space, const int32_t* ids) const {
  const int32_t half = geometry_.page_tokens / 2;
  const uint64_t hash = chain_hash(hash_before(parent, space), ids, half);
  return halves_.find(hash, [&](int32_t candidate) {
    const FullPage id(candidate);
    return node(id).parent == parent && node(id).space == space && same_ids(id, ids, half);
  }) >= 0;
}

RadixTree::Walk RadixTree::walk(NamespaceId space,
                                std::span<const int32_t> ids,
                                int32_t limit) const {
  Walk walk;
  const int32_t page_tokens = geometry_.page_tokens;
  const int32_t end = geometry_.floor_to_page(static_cast<int32_t>(ids.size()));
  // Live tokens before the current end; a path without tombstones needs no predecessor window.
  int32_t run = geometry_.window;
  while (walk.common < end) {
    const FullPage next = child(walk.node, space, ids.data() + walk.common);
    if (!next.valid()) {
      break;
    }
    walk.node = next;
    walk.common += page_tokens;
    run = is_live(next) ? std::min(run + page_tokens, geometry_.window) : 0;
    if (run == geometry_.window && walk.common <= limit) {
      walk.safe = next;
      walk.safe_tokens = walk.common;
    }
  }
  return walk;
}

FullPage RadixTree::insert(FullPage parent, NamespaceId space, PageLease page) {
  const FullPage id = std::move(page).into_node();
  const int32_t* ids = book_.tokens(id);
  const uint64_t before = hash_before(parent, space);
  Node& fresh = at(id);
  fresh = {};
  fresh.parent = parent;
  fresh.depth = node(parent).depth + 1;
  fresh.space = space;
  fresh.hash = chain_hash(before, ids, geometry_.page_tokens);
  fresh.stamp = fresh.swa_stamp = clock_;
  fresh.next_sibling = node(parent).first_child;
  if (fresh.next_sibling.valid()) {
    at(fresh.next_sibling).previous_sibling = id;
  }
  at(parent).first_child = id;
  blocks_.insert(fresh.hash, id.value());
  halves_.insert(chain_hash(before, ids, geometry_.page_tokens / 2), id.value());
  spaces_.add_ref(space);
  ++num_nodes_;
  refresh(parent);
  refresh(id);
  refresh_window(id);
  if (events_.enabled()) {
    events_.stored(fresh.hash, before, {ids, static_cast<size_t>(geometry_.page_tokens)});
  }
  return id;
}

void RadixTree::erase(FullPage id) {
  Node& gone = at(id);
  BALEEN_CHECK(is_leaf(id) && gone.num_points == 0 && id != kRoot, "node={}", id.value());
  const FullPage parent = gone.parent;
  if (gone.previous_sibling.valid()) {
    at(gone.previous_sibling).next_sibling = gone.next_sibling;
  } else {
    at(parent).first_child = gone.next_sibling;
  }
  if (gone.next_sibling.valid()) {
    at(gone.next_sibling).previous_sibling = gone.previous_sibling;
  }
  blocks_.erase(id.value());
  halves_.erase(id.value());
  leaves_.erase(id.value());
  windows_.erase(id.value());
  if (events_.enabled()) {
    events_.removed(gone.hash);
  }
  spaces_.release(gone.space);
  gone = {};
  --num_nodes_;
  book_.drop_node(id);
  refresh(parent);
}

void RadixTree::lock(FullPage id, FullPage above) {
  for (FullPage at_node = id; at_node != above; at_node = node(at_node).parent) {
    BALEEN_DCHECK(at_node != kRoot, "{} is not above {}", above.value(), id.value());
    book_.lock(at_node);
    leaves_.erase(at_node.value());
  }
}

void RadixTree::unlock(FullPage id) {
  const int64_t now = tick();
  for (FullPage at_node = id; at_node != kRoot; at_node = node(at_node).parent) {
    book_.unlock(at_node);
    at(at_node).stamp = now;
    refresh(at_node);
  }
}

template <class Visit>
void RadixTree::for_window(FullPage id, Visit&& visit) {
  FullPage at_node = id;
  for (int32_t left = geometry_.window_pages(); left > 0 && at_node != kRoot; --left) {
    visit(at_node);
    at_node = node(at_node).parent;
  }
}

void RadixTree::lock_window(FullPage id) {
  for_window(id, [&](FullPage at_node) {
    book_.lock_swa(at_node);
    windows_.erase(at_node.value());
  });
}

void RadixTree::unlock_window(FullPage id) {
  for_window(id, [&](FullPage at_node) {
    book_.unlock_swa(at_node);
    refresh_window(at_node);
  });
}

void RadixTree::touch_window(FullPage id) {
  const int64_t now = tick();
  for_window(id, [&](FullPage at_node) {
    at(at_node).swa_stamp = now;
    refresh_window(at_node);
  });
}

void RadixTree::release_swa(FullPage id) {
  book_.release_swa(id);
  windows_.erase(id.value());
}

void RadixTree::adopt_swa(FullPage id, FullPage from) {
  book_.move_swa(from, id);
  at(id).swa_stamp = clock_;
  refresh_window(id);
}

void RadixTree::refresh(FullPage id) {
  if (id == kRoot) {
    return;
  }
  if (is_leaf(id) && book_.state(id).full_locks == 0) {
    leaves_.put(id.value(), {node(id).stamp, node(id).depth});
  } else {
    leaves_.erase(id.value());
  }
}

void RadixTree::refresh_window(FullPage id) {
  if (is_live(id) && book_.state(id).swa_locks == 0) {
    windows_.put(id.value(), {node(id).swa_stamp, node(id).depth});
  } else {
    windows_.erase(id.value());
  }
}

void RadixTree::list_all(std::vector<CacheEvent>& events) const {
  // Depth first along first children and siblings; needs no stack because links lead back.
  FullPage id = node(kRoot).first_child;
  while (id.valid()) {
    const int32_t* ids = book_.tokens(id);
    events.push_back({CacheEvent::Kind::kStored,
                      node(id).hash,
                      hash_before(node(id).parent, node(id).space),
                      {ids, ids + geometry_.page_tokens}});
    if (node(id).first_child.valid()) {
      id = node(id).first_child;
      continue;
    }
    while (id.valid() && id != kRoot && !node(id).next_sibling.valid()) {
      id = node(id).parent;
    }
    id = id == kRoot ? FullPage() : node(id).next_sibling;
  }
}

}  // namespace baleen::cache
