#include "cache/sequence_cache.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"

namespace baleen::cache {

SequenceLease& SequenceLease::operator=(SequenceLease&& other) noexcept {
  if (this != &other) {
    if (cache_ != nullptr) {
      cache_->abort(std::move(*this));
    }
    cache_ = std::exchange(other.cache_, nullptr);
    slot_ = other.slot_;
  }
  return *this;
}

SequenceLease::~SequenceLease() {
  if (cache_ != nullptr) {
    cache_->abort(std::move(*this));
  }
}

const Sequence& SequenceLease::sequence() const {
  BALEEN_CHECK(cache_ != nullptr, "the lease has ended");
  return cache_->sequences_[static_cast<size_t>(slot_.value())];
}

int32_t SequenceLease::allocated() const {
  return static_cast<int32_t>(sequence().pages.size()) * cache_->geometry().page_tokens;
}

SwaPage SequenceLease::swa_page(int32_t block) const {
  return cache_->radix_.book().swa_of(sequence().pages[static_cast<size_t>(block)]);
}

SequenceCache::SequenceCache(const SequenceCacheOptions& options, PageObserver* observer)
    : radix_(options.geometry, options.sizes, observer),
      rings_(options.rings),
      capture_(options.capture) {
  rings_.validate(geometry(), options.verified_tokens);
  if (options.request_slots <= 0 || options.sizes.full_pages <= 0 || options.sizes.swa_pages <= 0) {
    throw ConfigError(
        fmt::format("cache: request_slots = {}, full_pages = {}, swa_pages = {}: all "
                    "must be positive",
                    options.request_slots,
                    options.sizes.full_pages,
                    options.sizes.swa_pages));
  }
  if (capture_.interval < 0 || capture_.interval % geometry().prompt_step != 0) {
    throw ConfigError(fmt::format("checkpoint interval = {}: must be a multiple of {} tokens, or 0",
                                  capture_.interval,
                                  geometry().prompt_step));
  }
  sequences_.resize(static_cast<size_t>(options.request_slots));
}

SequenceCache::~SequenceCache() {
  for ([[maybe_unused]] const Sequence& s : sequences_) {
    BALEEN_DCHECK(!s.running, "a lease outlives the cache");
  }
}

Sequence& SequenceCache::sequence_of(RequestSlot slot) {
  BALEEN_CHECK(slot.valid() && slot.value() < static_cast<int32_t>(sequences_.size()),
               "slot={} of {}",
               slot.value(),
               sequences_.size());
  return sequences_[static_cast<size_t>(slot.value())];
}

int32_t SequenceCache::most_reuse(const SequenceKey& key) const {
  const auto most = static_cast<int32_t>(key.ids.size()) - 1;  // one token must be computed
  return key.reuse_limit < 0 ? most : std::min(most, key.reuse_limit);
}

PrefixMatch SequenceCache::peek(const SequenceKey& key) const {
  return key.share ? radix_.match(radix_.spaces().find(key.space), key.ids, most_reuse(key))
                   : PrefixMatch{};
}

PageBudget SequenceCache::budget() const {
  const PageBook& book = radix_.book();
  return {.free_full = book.full_count(PageUse::kFree),
          .evictable_full = book.full_count(PageUse::kEvictable),
          .free_swa = book.swa_count(PageUse::kFree),
          .evictable_swa = book.swa_count(PageUse::kEvictable)};
}

int32_t SequenceCache::pages_needed(const SequenceLease& lease, int32_t end) const {
  return std::max(0,
                  geometry().blocks_of(end) - static_cast<int32_t>(lease.sequence().pages.size()));
}

int32_t SequenceCache::first_private_block(const PrefixMatch& match) const {
  const int32_t begin = match.point.valid() ? geometry().window_begin(match.hit) : match.hit;
  return begin / geometry().page_tokens;
}

std::optional<SequenceCache::Admission> SequenceCache::admit(RequestSlot slot,
                                                             const SequenceKey& key,
                                                             int32_t chunk_tokens) {
  Sequence& s = sequence_of(slot);
  BALEEN_CHECK(!s.running, "slot={} is in use", slot.value());
  BALEEN_CHECK(
      !key.ids.empty() && chunk_tokens > 0, "ids={} chunk={}", key.ids.size(), chunk_tokens);
  const auto num_ids = static_cast<int32_t>(key.ids.size());
  const PrefixMatch match = peek(key);
  const int32_t shared_blocks = first_private_block(match);
  FullPage node = match.node;
  while (radix_.tree().node(node).depth > shared_blocks) {
    node = radix_.tree().node(node).parent;
  }
  // Locked before room is made, so that the prefix itself is not what goes.
  radix_.tree().lock(node, RadixTree::kRoot);
  const bool window_locked = !match.point.valid() && match.hit > 0;
  if (window_locked) {
    radix_.tree().lock_window(node);
  } else if (match.point.valid()) {
    radix_.pin(match.point);
  }
  const int32_t end = std::min(num_ids, match.hit + std::min(chunk_tokens, num_ids));
  const int32_t num_private = geometry().blocks_of(end) - shared_blocks;
  if (!radix_.make_room(num_private, num_private)) {
    if (window_locked) {
      radix_.tree().unlock_window(node);
    } else if (match.point.valid()) {
      radix_.unpin(match.point);
    }
    radix_.unlock(node);
    ++radix_.stats().admissions_refused;
    return std::nullopt;
  }
  s.running = true;
  s.share = key.share;
  s.drafts = key.drafts;
  s.space = radix_.spaces().acquire(key.space);
  s.prompt_tokens = num_ids;
  s.cached_tokens = s.committed = s.written_end = match.hit;
  s.next_id = key.ids[static_cast<size_t>(match.hit)];
  s.branch = match.branch;
  s.node = node;
  s.window_locked = window_locked;
  s.swa_valid_from = match.point.valid() ? geometry().floor_to_page(match.hit - 1) : 0;
  s.windows_released = 0;
  take_shared_pages(s, node);
  add_blocks(s, num_private);
  set_draft_rows(s, match, key.ids);
  std::optional<Admission> admission(std::in_place);
  admission->lease = SequenceLease(this, slot);
  if (match.point.valid()) {
    admission->copy = start_resume(s, match);
    admission->copy->slot = slot;
    radix_.points().touch(match.point, radix_.tree().tick());
    // The ids that the copied pages hold.
    for (const ResumeCopy::Block& block : admission->copy->blocks) {
      std::copy_n(radix_.book().tokens(block.source),
                  geometry().page_tokens,
                  radix_.book().tokens(block.target));
    }
  } else if (window_locked) {
    radix_.tree().touch_window(node);
  }
  count_admission(match, num_ids);
  return admission;
}

void SequenceCache::take_shared_pages(Sequence& s, FullPage node) {
  s.shared_blocks = radix_.tree().node(node).depth;
  s.pages.resize(static_cast<size_t>(s.shared_blocks));
  for (int32_t block = s.shared_blocks - 1; block >= 0; --block) {
    s.pages[static_cast<size_t>(block)] = node;
    node = radix_.tree().node(node).parent;
  }
  for (int32_t block = 0; block < s.shared_blocks; ++block) {
    note_change(s, block);
  }
}

void SequenceCache::add_blocks(Sequence& s, int32_t num_blocks) {
  PageBook& book = radix_.book();
  for (int32_t i = 0; i < num_blocks; ++i) {
    s.leases.emplace_back(book, book.take());
    book.attach_swa(s.leases.back().page());
    s.pages.push_back(s.leases.back().page());
    note_change(s, static_cast<int32_t>(s.pages.size()) - 1);
  }
}

ResumeCopy SequenceCache::start_resume(Sequence& s, const PrefixMatch& match) {
  const ResumePoint& point = radix_.points().at(match.point);
  const RadixTree& tree = radix_.tree();
  ResumeCopy copy;
  copy.ticket = tickets_.open();
  tickets_.find(copy.ticket)->pins.push_back(match.point);
  s.tickets.push_back(copy.ticket);
  copy.position = match.hit;
  copy.source = match.point;
  copy.open_blocks.assign(point.open_blocks().begin(), point.open_blocks().end());
  copy.recompute_draft_row = recomputes_draft_row(s, match, s.next_id);
  // From the block of the last row back to the first private one.
  FullPage node = point.node;
  for (int32_t block = (match.hit - 1) / geometry().page_tokens; block >= s.shared_blocks;
       --block) {
    FullPage source = point.head;
    if (tree.node(node).depth > block) {
      source = node;
      node = tree.node(node).parent;
    }
    const FullPage target = s.pages[static_cast<size_t>(block)];
    copy.blocks.insert(copy.blocks.begin(),
                       {.block = block,
                        .source = source,
                        .target = target,
                        .window = radix_.book().swa_of(target)});
  }
  return copy;
}

bool SequenceCache::reserve(SequenceLease& lease, int32_t end) {
  Sequence& s = sequence_of(lease.slot());
  const int32_t num_blocks = pages_needed(lease, end);
  if (num_blocks == 0) {
    return true;
  }
  if (!radix_.make_room(num_blocks, num_blocks)) {
    return false;
  }
  add_blocks(s, num_blocks);
  return true;
}

void SequenceCache::commit(SequenceLease& lease, std::span<const int32_t> ids, int32_t next_id) {
  Sequence& s = sequence_of(lease.slot());
  BALEEN_CHECK(s.committed + static_cast<int64_t>(ids.size()) <= lease.allocated(),
               "committed={} + {} allocated={}",
               s.committed,
               ids.size(),
               lease.allocated());
  const int32_t page_tokens = geometry().page_tokens;
  for (size_t done = 0; done < ids.size();) {
    const int32_t offset = s.committed % page_tokens;
    const size_t count = std::min(ids.size() - done, static_cast<size_t>(page_tokens - offset));
    const FullPage page = s.pages[static_cast<size_t>(s.committed / page_tokens)];
    std::copy_n(ids.data() + done, count, radix_.book().tokens(page) + offset);
    s.committed += static_cast<int32_t>(count);
    done += count;
  }
  s.next_id = next_id;
  if (s.share) {
    share_blocks(s, /*ending=*/false);
    settle(s);
  } else {
    release_old_windows(s);
  }
}

void SequenceCache::note_change(const Sequence& s, int32_t block) {
  const FullPage page = s.pages[static_cast<size_t>(block)];
  const RequestSlot slot(static_cast<int32_t>(&s - sequences_.data()));
  changes_.push_back({slot, block, page, radix_.book().swa_of(page)});
}

void SequenceCache::take_page_changes(std::vector<PageChange>& changes) {
  changes.insert(changes.end(), changes_.begin(), changes_.end());
  changes_.clear();
}

void SequenceCache::count_admission(const PrefixMatch& match, int32_t num_ids) {
  CacheStats& stats = radix_.stats();
  ++stats.admissions;
  stats.prompt_tokens += num_ids;
  stats.cached_tokens += match.hit;
  stats.hits_live += !match.point.valid() && match.hit > 0 ? 1 : 0;
  stats.hits_point += match.point.valid() ? 1 : 0;
  ++stats.cut_hits[static_cast<size_t>(match.reason)];
  stats.lost_tokens[static_cast<size_t>(match.reason)] += match.common - match.hit;
}

}  // namespace baleen::cache
