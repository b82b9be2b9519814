#include "cache/cache_story.h"

#include <algorithm>

#include <fmt/format.h>

namespace baleen::cache {
namespace {

constexpr int32_t kMostTokens = 200;  // of one sequence
constexpr size_t kMostHistories = 8;

}  // namespace

CacheStory::CacheStory(const WorkloadOptions& options) : options_(options), work_(options) {}

void CacheStory::tell(uint32_t event) {
  const uint32_t kind = event & 0xF;
  const uint32_t a = (event >> 4) & 0xFF;
  const uint32_t b = (event >> 12) & 0xFF;
  const uint32_t c = event >> 20;
  switch (kind) {
    case 1:
    case 2:
      admit(a, b, c);
      break;
    case 3:
    case 4:
    case 5:
      step(a, b, c);
      break;
    case 6:
    case 7:
      work_.process();
      break;
    case 8:
    case 9:
    case 10:
      let_go(kind, a);
      break;
    case 11:
    case 12:
    case 13:
      copies(kind, a);
      break;
    case 14: {
      const PageBudget budget = work_.cache().budget();
      work_.cache().make_room(static_cast<int32_t>(a) % (budget.full() + 2) / (b % 3 + 1),
                              static_cast<int32_t>(b) % (budget.swa() + 2) / (a % 3 + 1));
      break;
    }
    case 15:
      if (c % 64 == 0) {
        work_.cache().flush();
      } else if (const int sequence = pick(a); sequence >= 0) {
        const SequenceLease& lease = work_.sequence(sequence).lease;
        const std::vector<int32_t>& ids = work_.sequence(sequence).ids;
        work_.cache().commit(
            work_.sequence(sequence).lease, {}, ids[static_cast<size_t>(lease.committed())]);
      }
      break;
    default:
      return;
  }
  check();
}

void CacheStory::check() {
  if (fault_.empty()) {
    fault_ = work_.fault();
  }
}

int CacheStory::pick(uint32_t a) const {
  if (work_.sequences().empty()) {
    return -1;
  }
  auto at = work_.sequences().begin();
  std::advance(at, a % work_.sequences().size());
  return at->first;
}

void CacheStory::admit(uint32_t a, uint32_t b, uint32_t c) {
  std::vector<int32_t> ids;
  if (!histories_.empty() && a % 5 != 0) {
    const std::vector<int32_t>& history = histories_[a % histories_.size()];
    const size_t cut = b % 2 == 0 ? history.size() : b * history.size() / 256;
    ids.assign(history.begin(), history.begin() + static_cast<std::ptrdiff_t>(cut));
  }
  const uint32_t fresh = ids.empty() ? 1 + c % 90 : c % 24;
  for (uint32_t i = 0; i < fresh; ++i) {  // few different tokens, so that prompts part late
    ids.push_back(1 + static_cast<int32_t>((b * 2654435761U >> (i % 24)) & 1));
  }
  if (ids.empty() || static_cast<int32_t>(ids.size()) > kMostTokens) {
    return;
  }
  CacheWorkload::Admit how;
  how.drafts = (c >> 5) % 2 == 0;
  how.share = (c >> 6) % 16 != 0;
  how.chunk = 1 + static_cast<int32_t>(a) % 60;
  if ((c >> 10) % 4 == 3 && b % 4 == 0) {
    how.space.cache_salt = "other";
  }
  if (b % 16 == 5) {
    how.reuse_limit = static_cast<int32_t>(c % 64);
  }
  check_match({.ids = ids,
               .space = how.space,
               .reuse_limit = how.reuse_limit,
               .drafts = how.drafts,
               .share = how.share});
  work_.admit(std::move(ids), how);
}

void CacheStory::check_match(const SequenceKey& key) {
  if (!key.share) {
    return;
  }
  const PrefixMatch match = work_.cache().peek(key);
  int32_t limit = static_cast<int32_t>(key.ids.size()) - 1;
  if (key.reuse_limit >= 0) {
    limit = std::min(limit, key.reuse_limit);
  }
  const NamespaceId space = work_.cache().radix().spaces().find(key.space);
  const int32_t wanted = naive_hit(work_.cache(), space, key.ids, limit);
  if (match.hit != wanted && fault_.empty()) {
    fault_ = fmt::format("match of {} tokens is {}, looking at everything gives {}",
                         key.ids.size(),
                         match.hit,
                         wanted);
  }
}

void CacheStory::step(uint32_t a, uint32_t b, uint32_t c) {
  if (work_.steps_in_flight() == 2) {
    work_.process();
    check();
  }
  const CacheGeometry& geometry = options_.cache.geometry;
  const int32_t most_verified = std::min(
      {9,
       StateRings::most_verified(options_.cache.rings.c4_rows, StateRings::c4_reach(geometry)),
       StateRings::most_verified(options_.cache.rings.c128_rows, geometry.c128_ratio)});
  std::vector<CacheWorkload::Work> rows;
  uint32_t bit = 0;
  for (const auto& [sequence, running] : work_.sequences()) {
    if ((a >> bit++ % 8) % 2 == 0 || running.computed >= kMostTokens) {
      continue;
    }
    const auto verified = 1 + static_cast<int32_t>(c) % most_verified;
    const auto accepted = 1 + static_cast<int32_t>(b) % verified;
    const bool prefill = running.computed < running.prompt;
    rows.push_back({sequence,
                    prefill ? 1 + static_cast<int32_t>(b % 64) : accepted,
                    prefill ? 0 : verified - accepted});
  }
  work_.submit(rows);
}

void CacheStory::let_go(uint32_t how, uint32_t a) {
  const int sequence = pick(a);
  if (sequence < 0) {
    return;
  }
  const CacheWorkload::Running& s = work_.sequence(sequence);
  const auto known = static_cast<size_t>(std::max(s.lease.committed() + 1, s.prompt));
  std::vector<int32_t> ids(s.ids.begin(), s.ids.begin() + static_cast<std::ptrdiff_t>(known));
  if (how == 9) {
    work_.abort(sequence);
    return;
  }
  if (histories_.size() < kMostHistories) {
    histories_.push_back(ids);
  } else {
    histories_[a % kMostHistories] = ids;
  }
  if (how == 8) {
    work_.finish(sequence);
    return;
  }
  CacheWorkload::Admit again;
  again.space = s.space;
  again.drafts = s.drafts;
  work_.preempt(sequence);
  check();
  if (a % 2 == 0 && static_cast<int32_t>(ids.size()) <= kMostTokens) {
    work_.admit(std::move(ids), again);
  }
}

void CacheStory::copies(uint32_t kind, uint32_t a) {
  if (kind == 11) {
    const int sequence = pick(a);
    if (sequence >= 0 && copies_.size() < 4) {
      const SequenceLease& lease = work_.sequence(sequence).lease;
      const auto blocks = static_cast<int32_t>(lease.full_pages().size());
      const int32_t first = static_cast<int32_t>(a / 4) % (blocks + 1);
      copies_.push_back(work_.cache().hold_blocks(lease, first, blocks - first));
    }
  } else if (kind == 12 && !copies_.empty()) {
    const size_t at = a % copies_.size();
    const CacheTicket ticket = copies_[at];
    copies_.erase(copies_.begin() + static_cast<std::ptrdiff_t>(at));
    work_.cache().complete(ticket);
    if (a % 3 == 0) {
      work_.cache().complete(ticket);  // twice
    }
  } else {
    work_.cache().complete(CacheTicket((int64_t{1} << 40) + a));  // never was
  }
}

void CacheStory::end() {
  work_.process_all();
  while (!work_.sequences().empty()) {
    work_.finish(work_.sequences().begin()->first);
    check();
  }
  work_.submit({});
  work_.process_all();
  for (const CacheTicket ticket : copies_) {
    work_.cache().complete(ticket);
  }
  copies_.clear();
  check();
  const PageBudget held = work_.cache().budget();
  work_.cache().flush();
  check();
  const PageBudget left = work_.cache().budget();
  const ShadowRadix& radix = work_.cache().radix();
  const bool clean = held.full() == options_.cache.sizes.full_pages &&
                     held.swa() == options_.cache.sizes.swa_pages &&
                     left.free_full == options_.cache.sizes.full_pages &&
                     left.free_swa == options_.cache.sizes.swa_pages &&
                     radix.points().free_slots() == options_.cache.sizes.checkpoint_slots &&
                     radix.points().free_open_blocks() == options_.cache.sizes.open_group_blocks &&
                     radix.spaces().live() == 0 && work_.cache().tickets().num_open() == 0;
  if (!clean && fault_.empty()) {
    fault_ = fmt::format(
        "something leaks: free full {} window {} slots {} blocks {}, namespaces {}, "
        "tickets {}",
        left.free_full,
        left.free_swa,
        radix.points().free_slots(),
        radix.points().free_open_blocks(),
        radix.spaces().live(),
        work_.cache().tickets().num_open());
  }
}

int32_t naive_hit(const SequenceCache& cache,
                  NamespaceId space,
                  std::span<const int32_t> ids,
                  int32_t limit) {
  const RadixTree& tree = cache.radix().tree();
  const PageBook& book = cache.radix().book();
  const CacheGeometry& geometry = cache.geometry();
  const auto agrees = [&](const int32_t* stored, int32_t begin, int32_t count) {
    return begin + count <= static_cast<int32_t>(ids.size()) &&
           std::equal(stored, stored + count, ids.begin() + begin);
  };
  int32_t best = 0;
  struct Visit {
    FullPage node;
    int32_t live_tokens;
  };
  std::vector<Visit> open{{RadixTree::kRoot, geometry.window}};
  while (!open.empty()) {
    const auto [node, live_tokens] = open.back();
    open.pop_back();
    const int32_t end = tree.end_of(node);
    if (live_tokens >= geometry.window && end <= limit) {
      best = std::max(best, end);
    }
    for (int32_t slot = 0; slot < cache.radix().points().num_slots(); ++slot) {
      const ResumePoint& point = cache.radix().points().at(CheckpointSlot(slot));
      if (point.state == ResumePoint::State::kVisible && point.node == node &&
          point.space == space && point.position <= limit &&
          agrees(book.tokens(point.head), end, point.position - end)) {
        best = std::max(best, point.position);
      }
    }
    for (FullPage child = tree.node(node).first_child; child.valid();
         child = tree.node(child).next_sibling) {
      if (tree.node(child).space == space &&
          agrees(book.tokens(child), end, geometry.page_tokens)) {
        open.push_back({child, tree.is_live(child) ? live_tokens + geometry.page_tokens : 0});
      }
    }
  }
  return best;
}

}  // namespace baleen::cache
