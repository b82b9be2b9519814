#include "cache/cache_audit.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <vector>

#include <fmt/format.h>

namespace baleen::cache {
namespace {

// The first violation ends the audit.
struct Fault {
  std::string text;
};

template <class... Args>
void require(bool holds, fmt::format_string<Args...> text, Args&&... args) {
  if (!holds) {
    throw Fault{fmt::format(text, std::forward<Args>(args)...)};
  }
}

constexpr FullPage kRoot = RadixTree::kRoot;

class Audit {
 public:
  explicit Audit(const SequenceCache& cache)
      : cache_(cache),
        geometry_(cache.geometry()),
        book_(cache.radix().book()),
        tree_(cache.radix().tree()),
        points_(cache.radix().points()),
        pages_(static_cast<size_t>(book_.num_full()) + 1),
        swa_holds_(static_cast<size_t>(book_.num_swa()) + 1, 0) {}

  void run() {
    walk_tree();
    count_sequences();
    count_tickets();
    count_points();
    compare_full_pages();
    compare_swa_pages();
    check_free_lists();
    check_nodes();
    check_points();
    check_sequences();
    check_namespaces();
  }

 private:
  PageBook::FullState& page(FullPage id) { return pages_[static_cast<size_t>(id.value())]; }

  void walk_tree() {
    std::vector<FullPage> open{kRoot};
    int32_t seen = 0;
    while (!open.empty()) {
      const FullPage parent = open.back();
      open.pop_back();
      FullPage previous;
      for (FullPage id = tree_.node(parent).first_child; id.valid();
           id = tree_.node(id).next_sibling) {
        const RadixTree::Node& node = tree_.node(id);
        require(node.parent == parent && node.previous_sibling == previous,
                "node {}: links of parent {} are broken",
                id.value(),
                parent.value());
        require(!page(id).node, "node {} is reached twice", id.value());
        page(id).node = true;
        previous = id;
        open.push_back(id);
        ++seen;
        spaces_[node.space]++;
      }
    }
    require(seen == tree_.num_nodes(), "tree has {} nodes, counts {}", seen, tree_.num_nodes());
  }

  void lock_path(FullPage id) {
    for (; id != kRoot; id = tree_.node(id).parent) {
      require(page(id).node, "a lock is held on page {}, which is no node", id.value());
      page(id).full_locks++;
    }
  }

  void lock_window(FullPage id) {
    for (int32_t left = geometry_.window_pages(); left > 0 && id != kRoot; --left) {
      page(id).swa_locks++;
      id = tree_.node(id).parent;
    }
  }

  void count_sequences() {
    for (const Sequence& s : cache_.sequences()) {
      if (!s.running) {
        require(s.leases.empty() && s.pages.empty() && s.pending.empty(), "an ended sequence owns");
        continue;
      }
      lock_path(s.node);
      if (s.window_locked) {
        lock_window(s.node);
      }
      for (const PageLease& lease : s.leases) {
        require(!page(lease.page()).leased, "page {} is leased twice", lease.page().value());
        page(lease.page()).leased = true;
      }
      spaces_[s.space]++;
    }
  }

  void count_tickets() {
    cache_.tickets().for_each_open([&](const TicketHolds& holds) {
      for (const FullPage id : holds.full_pages) {
        page(id).holds++;
      }
      for (const SwaPage id : holds.swa_pages) {
        swa_holds_[static_cast<size_t>(id.value())]++;
      }
      for (const FullPage id : holds.nodes) {
        lock_path(id);
      }
      for (const FullPage id : holds.windows) {
        lock_window(id);
      }
      for (const CheckpointSlot slot : holds.pins) {
        pins_[slot]++;
      }
      for (const CheckpointSlot slot : holds.writes) {
        require(writes_.insert(slot).second, "checkpoint {} is written twice", slot.value());
      }
    });
  }

  bool is_orphan(CheckpointSlot slot) const {
    const ResumePoint& point = points_.at(slot);
    return point.state == ResumePoint::State::kPending && !point.owner.valid();
  }

  void count_points() {
    int32_t held_blocks = 0;
    for (int32_t i = 0; i < points_.num_slots(); ++i) {
      const CheckpointSlot slot(i);
      const ResumePoint& point = points_.at(slot);
      held_blocks += point.num_blocks;
      const bool visible = point.state == ResumePoint::State::kVisible;
      const int32_t pins = pins_.contains(slot) ? pins_.at(slot) : 0;
      require(point.pins == pins && (pins == 0 || visible), "point {}: pins", i);
      if (!visible && !is_orphan(slot)) {
        continue;
      }
      spaces_[point.space]++;
      const int32_t users = visible ? pins : 1;
      for (int32_t user = 0; user < users; ++user) {
        lock_path(point.node);
      }
      if (point.head.value() != 0) {
        page(point.head).heads++;
        page(point.head).pinned_heads += users;
      }
    }
    std::set<OpenGroupBlock> free(points_.free_block_list().begin(),
                                  points_.free_block_list().end());
    require(static_cast<int32_t>(free.size()) == points_.free_open_blocks() &&
                points_.free_open_blocks() + held_blocks == points_.num_open_blocks(),
            "open-group blocks: {} free, {} held, {} in all",
            points_.free_open_blocks(),
            held_blocks,
            points_.num_open_blocks());
  }

  void compare_full_pages() {
    PageCounts counts{};
    for (int32_t i = 1; i <= book_.num_full(); ++i) {
      const FullPage id(i);
      const PageBook::FullState& kept = book_.state(id);
      const PageBook::FullState& found = page(id);
      require(kept.leased == found.leased && kept.node == found.node &&
                  kept.full_locks == found.full_locks && kept.swa_locks == found.swa_locks &&
                  kept.heads == found.heads && kept.pinned_heads == found.pinned_heads &&
                  kept.holds == found.holds,
              "page {}: kept/found leased {}/{} node {}/{} full locks {}/{} window locks {}/{} "
              "heads {}/{} pinned {}/{} holds {}/{}",
              i,
              kept.leased,
              found.leased,
              kept.node,
              found.node,
              kept.full_locks,
              found.full_locks,
              kept.swa_locks,
              found.swa_locks,
              kept.heads,
              found.heads,
              kept.pinned_heads,
              found.pinned_heads,
              kept.holds,
              found.holds);
      require(!(kept.leased && kept.node), "page {} is private and in the tree", i);
      require(kept.swa_locks <= kept.full_locks, "page {}: more window locks than locks", i);
      require(kept.swa.value() != 0 || kept.swa_locks == 0, "page {}: locked tombstone window", i);
      require(kept.leased || kept.node || kept.swa.value() == 0, "page {}: stray window page", i);
      counts[static_cast<size_t>(book_.use(id))]++;
    }
    for (int use = 0; use < kNumPageUses; ++use) {
      require(counts[static_cast<size_t>(use)] == book_.full_count(static_cast<PageUse>(use)),
              "full pages of use {}: {} found, {} counted",
              use,
              counts[static_cast<size_t>(use)],
              book_.full_count(static_cast<PageUse>(use)));
    }
    const PageBook::FullState& root = book_.state(kRoot);
    require(!root.leased && !root.node && root.full_locks == 0 && root.heads == 0 &&
                root.holds == 0 && root.swa.value() == 0,
            "the sink is in use");
  }

  void compare_swa_pages() {
    PageCounts counts{};
    for (int32_t i = 1; i <= book_.num_swa(); ++i) {
      const SwaPage id(i);
      const FullPage owner = book_.owner_of(id);
      require(owner.value() == 0 || book_.swa_of(owner) == id, "window page {}: owner", i);
      require(book_.holds_of(id) == swa_holds_[static_cast<size_t>(i)], "window page {}: holds", i);
      counts[static_cast<size_t>(book_.use(id))]++;
    }
    for (int32_t i = 1; i <= book_.num_full(); ++i) {
      const SwaPage swa = book_.swa_of(FullPage(i));
      require(swa.value() == 0 || book_.owner_of(swa) == FullPage(i), "page {}: window page", i);
    }
    for (int use = 0; use < kNumPageUses; ++use) {
      require(counts[static_cast<size_t>(use)] == book_.swa_count(static_cast<PageUse>(use)),
              "window pages of use {}: {} found, {} counted",
              use,
              counts[static_cast<size_t>(use)],
              book_.swa_count(static_cast<PageUse>(use)));
    }
  }

  template <class Id>
  void check_free_list(const std::vector<Id>& list, int32_t counted, const char* pool) {
    require(static_cast<int32_t>(list.size()) == counted,
            "{}: {} pages in the free list, {} free",
            pool,
            list.size(),
            counted);
    std::vector<Id> sorted = list;
    std::sort(sorted.begin(), sorted.end());
    require(
        std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end(), "{}: freed twice", pool);
    for (const Id id : sorted) {
      require(id.value() > 0 && book_.use(id) == PageUse::kFree,
              "{}: page {} is free and in use",
              pool,
              id.value());
    }
  }

  void check_free_lists() {
    check_free_list(book_.free_full(), book_.full_count(PageUse::kFree), "full");
    check_free_list(book_.free_swa(), book_.swa_count(PageUse::kFree), "swa");
  }

  void check_nodes() {
    int32_t leaves = 0;
    int32_t windows = 0;
    for (int32_t i = 1; i <= book_.num_full(); ++i) {
      const FullPage id(i);
      if (!page(id).node) {
        continue;
      }
      const RadixTree::Node& node = tree_.node(id);
      const RadixTree::Node& parent = tree_.node(node.parent);
      const PageBook::FullState& state = book_.state(id);
      const int32_t* ids = book_.tokens(id);
      const uint64_t before = node.parent == kRoot ? tree_.root_hash(node.space) : parent.hash;
      require(node.depth == parent.depth + 1, "node {}: depth", i);
      require(node.parent == kRoot || node.space == parent.space, "node {}: namespace", i);
      require(
          node.hash == tree_.chain_hash(before, ids, geometry_.page_tokens), "node {}: hash", i);
      require(
          tree_.child(node.parent, node.space, ids) == id, "node {} is not found by its ids", i);
      const bool unlocked_leaf = tree_.is_leaf(id) && state.full_locks == 0;
      require(tree_.leaves().contains(i) == unlocked_leaf, "node {}: list of leaves", i);
      const bool loose_window = tree_.is_live(id) && state.swa_locks == 0;
      require(tree_.windows().contains(i) == loose_window, "node {}: list of windows", i);
      leaves += unlocked_leaf ? 1 : 0;
      windows += loose_window ? 1 : 0;
      require(!unlocked_leaf || tree_.leaves().key_of(i).stamp == node.stamp, "node {}: stamp", i);
      require(node.parent == kRoot || state.full_locks <= book_.state(node.parent).full_locks,
              "node {} has more locks than its parent",
              i);
      require(node.parent == kRoot || book_.state(node.parent).full_locks > 0 ||
                  node.stamp <= parent.stamp,
              "node {} was used after its parent",
              i);
      require(!unlocked_leaf || tree_.is_live(id) || node.num_points > 0,
              "node {} is an unlocked tombstone leaf without a resume point",
              i);
    }
    require(leaves == tree_.leaves().size() && windows == tree_.windows().size(),
            "stale candidates");
  }

  void check_points() {
    std::map<FullPage, int32_t> at_node;
    std::set<CheckpointSlot> free(points_.free_slot_list().begin(), points_.free_slot_list().end());
    require(static_cast<int32_t>(free.size()) == points_.free_slots(),
            "a checkpoint is freed twice");
    std::set<CheckpointSlot> owned;
    for (const Sequence& s : cache_.sequences()) {
      for (const CheckpointSlot slot : s.pending) {
        require(owned.insert(slot).second, "point {} is pending twice", slot.value());
      }
    }
    int32_t loose = 0;
    for (int32_t i = 0; i < points_.num_slots(); ++i) {
      const CheckpointSlot slot(i);
      const ResumePoint& point = points_.at(slot);
      const bool visible = point.state == ResumePoint::State::kVisible;
      require(
          free.contains(slot) == (point.state == ResumePoint::State::kFree), "point {}: free", i);
      const bool pending = point.state == ResumePoint::State::kPending;
      require(owned.contains(slot) == (pending && point.owner.valid()), "point {}: owner", i);
      const bool needs_ticket =
          point.state == ResumePoint::State::kDoomed || (pending && !point.written);
      require(writes_.contains(slot) == needs_ticket, "point {}: ticket", i);
      require(points_.evictable().contains(i) == (visible && point.pins == 0), "point {}: LRU", i);
      loose += visible && point.pins == 0 ? 1 : 0;
      if (!visible && !is_orphan(slot)) {
        continue;
      }
      const int32_t extra = point.position % geometry_.page_tokens;
      require(point.position > 0 && point.position % geometry_.resume_step == 0,
              "point {}: position",
              i);
      require(
          point.num_blocks == geometry_.open_blocks_of(point.position), "point {}: open blocks", i);
      require((point.head.value() != 0) == (extra != 0), "point {}: head page", i);
      require(point.node == kRoot || page(point.node).node, "point {}: its node is gone", i);
      require(tree_.end_of(point.node) + extra == point.position, "point {}: node", i);
      require(
          point.node == kRoot || tree_.node(point.node).space == point.space, "point {}: space", i);
      if (visible) {
        at_node[point.node]++;
        require(points_.find(point.node, point.space, book_.tokens(point.head), extra) == slot,
                "point {} is not found by its ids",
                i);
        require(points_.deepest(point.node, point.space, book_.tokens(point.head), extra) == slot,
                "point {} is not the deepest on its own path",
                i);
      }
    }
    require(loose == points_.evictable().size(), "stale points");
    for (int32_t i = 0; i <= book_.num_full(); ++i) {
      const FullPage id(i);
      int32_t listed = 0;
      for (CheckpointSlot slot = points_.first_at(id); slot.valid(); slot = points_.next_at(slot)) {
        require(points_.at(slot).node == id, "point {} hangs elsewhere", slot.value());
        ++listed;
      }
      const int32_t found = at_node.contains(id) ? at_node.at(id) : 0;
      require(listed == found && tree_.node(id).num_points == found, "node {}: points", i);
    }
  }

  void check_sequences() {
    for (const Sequence& s : cache_.sequences()) {
      if (!s.running) {
        continue;
      }
      const int32_t page_tokens = geometry_.page_tokens;
      const auto num_blocks = static_cast<int32_t>(s.pages.size());
      require(s.shared_blocks + static_cast<int32_t>(s.leases.size()) == num_blocks, "block table");
      require(tree_.node(s.node).depth == s.shared_blocks, "sequence: depth of its node");
      require(s.committed <= num_blocks * page_tokens, "sequence: committed without pages");
      FullPage at = s.node;
      for (int32_t block = s.shared_blocks - 1; block >= 0; --block, at = tree_.node(at).parent) {
        require(
            s.pages[static_cast<size_t>(block)] == at, "sequence: block {} left the tree", block);
      }
      for (int32_t block = s.shared_blocks; block < num_blocks; ++block) {
        require(s.pages[static_cast<size_t>(block)] ==
                    s.leases[static_cast<size_t>(block - s.shared_blocks)].page(),
                "sequence: block {} and its lease",
                block);
      }
      // What the next pass reads and writes has window rows.
      for (int32_t block = geometry_.window_begin(s.committed) / page_tokens; block < num_blocks;
           ++block) {
        require(book_.swa_of(s.pages[static_cast<size_t>(block)]).value() != 0,
                "sequence at {}: block {} lost its window rows",
                s.committed,
                block);
      }
      // Window rows that it reads from the tree cannot be given up.
      if (s.shared_blocks > 0 && s.committed < s.shared_blocks * page_tokens + geometry_.window) {
        require(s.window_locked, "sequence at {}: window is not locked", s.committed);
      }
    }
  }

  void check_namespaces() {
    for (const auto& [space, refs] : spaces_) {
      require(cache_.radix().spaces().refs(space) == refs,
              "namespace {}: {} references, {} found",
              space.value(),
              cache_.radix().spaces().refs(space),
              refs);
    }
    require(cache_.radix().spaces().live() == static_cast<int32_t>(spaces_.size()),
            "namespaces leak");
  }

  const SequenceCache& cache_;
  const CacheGeometry& geometry_;
  const PageBook& book_;
  const RadixTree& tree_;
  const PointTable& points_;
  std::vector<PageBook::FullState> pages_;  // as found
  std::vector<int32_t> swa_holds_;
  std::map<CheckpointSlot, int32_t> pins_;
  std::set<CheckpointSlot> writes_;
  std::map<NamespaceId, int32_t> spaces_;
};

}  // namespace

std::string audit(const SequenceCache& cache) {
  try {
    Audit(cache).run();
    return {};
  } catch (const Fault& fault) {
    return fault.text;
  }
}

}  // namespace baleen::cache
