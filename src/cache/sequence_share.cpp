#include "base/check.h"
#include "cache/sequence_cache.h"

namespace baleen::cache {

// Moves finished pages of a sequence into the tree. Where the tree has the block already, the
// sequence goes on with the tree's page: only window rows can be worth taking over, and they move
// to the node's own page, so the page that other sequences hold in their tables never changes.
void SequenceCache::share_blocks(Sequence& s, bool ending) {
  const int32_t page_tokens = geometry().page_tokens;
  const int32_t end_block = s.committed / page_tokens;
  FullPage node = s.node;
  // A block whose window is incomplete enters as a tombstone; it cannot while this sequence still
  // reads the rows that it does have.
  const bool waits = s.shared_blocks * page_tokens < s.swa_valid_from &&
                     s.committed < s.swa_valid_from + geometry().window_reach();
  // Until something was computed, pages of a resume may not have been filled yet.
  const bool computed = s.committed > s.cached_tokens;
  if (computed && end_block > s.shared_blocks && (ending || !waits)) {
    const int32_t first = s.shared_blocks;
    for (int32_t block = first; block < end_block; ++block) {
      node = share_block(s, block, node, std::move(s.leases[static_cast<size_t>(block - first)]));
    }
    s.leases.erase(s.leases.begin(), s.leases.begin() + (end_block - first));
    s.shared_blocks = end_block;
  }
  move_locks(s, node);
}

FullPage SequenceCache::share_block(Sequence& s, int32_t block, FullPage parent, PageLease lease) {
  PageBook& book = radix_.book();
  RadixTree& tree = radix_.tree();
  CacheStats& stats = radix_.stats();
  const FullPage page = lease.page();
  if ((block + 1) * geometry().page_tokens <= s.swa_valid_from) {
    hold_in_flight(s, page);
    book.release_swa(page);
    note_change(s, block);
  }
  const DraftMarks marks = draft_marks_of(s, block);
  const FullPage existing = tree.child(parent, s.space, book.tokens(page));
  if (!existing.valid()) {
    if (book.swa_of(page).value() != 0) {
      book.draft_marks(book.swa_of(page)) = marks;
    }
    ++stats.pages_stored;
    return tree.insert(parent, s.space, std::move(lease));
  }
  ++stats.pages_deduplicated;
  hold_in_flight(s, page);
  if (book.swa_of(page).value() != 0) {
    if (tree.is_live(existing) && book.state(existing).swa_locks == 0 &&
        book.draft_marks(book.swa_of(existing)).valid_from > marks.valid_from) {
      tree.release_swa(existing);  // ours has more rows of the draft layer
    }
    if (!tree.is_live(existing)) {
      tree.adopt_swa(existing, page);
      book.draft_marks(book.swa_of(existing)) = marks;
      ++stats.windows_adopted;
    } else {
      const int32_t end = tree.end_of(existing);
      see_draft_rows(s, book.swa_of(existing), end, id_at(s, end));
    }
  }
  lease.reset();
  s.pages[static_cast<size_t>(block)] = existing;
  note_change(s, block);
  return existing;
}

void SequenceCache::move_locks(Sequence& s, FullPage node) {
  RadixTree& tree = radix_.tree();
  if (node != s.node) {
    tree.lock(node, s.node);
  }
  bool wants_window =
      node != RadixTree::kRoot && s.committed < tree.end_of(node) + geometry().window_reach();
  FullPage at = node;
  for (int32_t left = geometry().window_pages(); left > 0 && at != RadixTree::kRoot; --left) {
    wants_window = wants_window && tree.is_live(at);  // dead only where a sequence ends early
    at = tree.node(at).parent;
  }
  if (node == s.node && wants_window == s.window_locked) {
    return;
  }
  // The new lock first: both may cover the same page.
  const bool had_window = s.window_locked;
  if (wants_window && !(had_window && node == s.node)) {
    tree.lock_window(node);
  }
  if (had_window && !(wants_window && node == s.node)) {
    tree.unlock_window(s.node);
  }
  s.window_locked = wants_window;
  s.node = node;
}

void SequenceCache::release_old_windows(Sequence& s) {
  PageBook& book = radix_.book();
  const int32_t page_tokens = geometry().page_tokens;
  while ((s.windows_released + 1) * page_tokens + geometry().window_reach() <= s.committed) {
    const FullPage page = s.pages[static_cast<size_t>(s.windows_released)];
    hold_in_flight(s, page);
    book.release_swa(page);
    note_change(s, s.windows_released);
    ++s.windows_released;
  }
}

void SequenceCache::keep_open_tickets(Sequence& s) {
  std::erase_if(s.tickets, [&](CacheTicket ticket) { return !tickets_.is_open(ticket); });
}

void SequenceCache::hold_in_flight(Sequence& s, FullPage page) {
  PageBook& book = radix_.book();
  keep_open_tickets(s);
  for (const CacheTicket ticket : s.tickets) {
    TicketHolds& holds = *tickets_.find(ticket);
    book.hold(page);
    holds.full_pages.push_back(page);
    if (const SwaPage swa = book.swa_of(page); swa.value() != 0) {
      book.hold(swa);
      holds.swa_pages.push_back(swa);
    }
  }
}

}  // namespace baleen::cache
