#pragma once
// Who uses which page: both page pools, the table from full pages to window pages, and the token
// ids that full pages hold. Ids only, no payload. Owned by ShadowRadix; the engine's thread.
//
// A full page is used by at most one sequence (leased) or one tree node, and by any number of
// resume points whose unaligned end lies in it (heads). It is free when no one uses it and no step
// or copy in flight touches it; until then it is parked. A window page belongs to one full page.
// Page 0 of both pools is the sink and is never handed out.
//
//   PageLease lease(book, book.take());      // a private page; the lease gives it back
//   book.attach_swa(lease.page());
//   FullPage node = std::move(lease).into_node();

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "cache/page_observer.h"
#include "cache/pool.h"

namespace baleen::cache {

enum class PageUse : uint8_t {
  kFree,
  kLeased,     // private to a running sequence
  kProtected,  // in the tree or under a resume point, in use by someone
  kEvictable,  // in the tree or under a resume point, unused
  kParked,     // given up by all, but a step or copy in flight still touches it
};
inline constexpr int kNumPageUses = 5;
using PageCounts = std::array<int32_t, kNumPageUses>;

/// What is known of the draft layer's rows in a window page.
struct DraftMarks {
  int32_t valid_from = 0;  // first row, counted in the page, that a request with drafts wrote
  int32_t next_id = -1;    // token that the page's last row was computed with, -1: unknown
};

class PageBook {
 public:
  struct FullState {
    bool leased = false;
    bool node = false;
    int32_t full_locks = 0;  // users whose path contains the node
    int32_t swa_locks = 0;   // those that still read its window rows
    int32_t heads = 0;       // resume points that end inside
    int32_t pinned_heads = 0;
    int32_t holds = 0;  // steps and copies in flight
    SwaPage swa{0};     // 0: no window rows (a tombstone, if a node)
  };

  PageBook(int32_t num_full, int32_t num_swa, int32_t page_tokens, PageObserver* observer);
  PageBook(const PageBook&) = delete;
  PageBook& operator=(const PageBook&) = delete;

  int32_t num_full() const { return num_full_; }
  int32_t num_swa() const { return num_swa_; }
  int32_t page_tokens() const { return page_tokens_; }
  const FullState& state(FullPage page) const { return full_[index(page)]; }
  SwaPage swa_of(FullPage page) const { return full_[index(page)].swa; }
  FullPage owner_of(SwaPage page) const { return swa_[index(page)].owner; }
  int32_t holds_of(SwaPage page) const { return swa_[index(page)].holds; }
  PageUse use(FullPage page) const;
  PageUse use(SwaPage page) const;
  int32_t full_count(PageUse wanted) const { return full_counts_[static_cast<size_t>(wanted)]; }
  int32_t swa_count(PageUse wanted) const { return swa_counts_[static_cast<size_t>(wanted)]; }

  /// The ids of a full page: page_tokens of them, those not written yet are stale.
  int32_t* tokens(FullPage page) { return tokens_.data() + token_offset(page); }
  const int32_t* tokens(FullPage page) const { return tokens_.data() + token_offset(page); }
  DraftMarks& draft_marks(SwaPage page) { return swa_[index(page)].marks; }
  const DraftMarks& draft_marks(SwaPage page) const { return swa_[index(page)].marks; }

  FullPage take();                  // leased; a free one must exist
  void attach_swa(FullPage page);   // a free window page must exist
  void release_swa(FullPage page);  // nothing to do for a page without
  void move_swa(FullPage from, FullPage to);
  void end_lease(FullPage page);  // with its window page
  void make_node(FullPage page);  // leased before
  void drop_node(FullPage page);  // with its window page; unlocked

  void lock(FullPage node) {
    change(node, [](FullState& s) { ++s.full_locks; });
  }
  void unlock(FullPage node);
  void lock_swa(FullPage node);
  void unlock_swa(FullPage node);
  void add_head(FullPage page) {
    change(page, [](FullState& s) { ++s.heads; });
  }
  void drop_head(FullPage page);
  void pin_head(FullPage page) {
    change(page, [](FullState& s) { ++s.pinned_heads; });
  }
  void unpin_head(FullPage page);
  void hold(FullPage page) {
    change(page, [](FullState& s) { ++s.holds; });
  }
  void unhold(FullPage page);
  void hold(SwaPage page);
  void unhold(SwaPage page);

  const std::vector<FullPage>& free_full() const { return free_full_; }
  const std::vector<SwaPage>& free_swa() const { return free_swa_; }

 private:
  struct SwaState {
    FullPage owner{0};  // 0: none
    int32_t holds = 0;
    DraftMarks marks;
  };

  template <class Id>
  static size_t index(Id id) {
    return static_cast<size_t>(id.value());
  }
  size_t token_offset(FullPage page) const {
    return index(page) * static_cast<size_t>(page_tokens_);
  }
  void leave(FullPage page);  // takes the page and its window page out of the counts
  void enter(FullPage page);  // counts them again, frees what became free
  void enter(SwaPage page);
  template <class Change>
  void change(FullPage page, Change&& apply) {
    leave(page);
    apply(full_[index(page)]);
    enter(page);
  }

  int32_t num_full_;
  int32_t num_swa_;
  int32_t page_tokens_;
  PageObserver* observer_;  // outlives the book; may be null
  std::vector<FullState> full_;
  std::vector<SwaState> swa_;
  std::vector<int32_t> tokens_;
  std::vector<FullPage> free_full_;
  std::vector<SwaPage> free_swa_;
  PageCounts full_counts_{};
  PageCounts swa_counts_{};
};

/// A private page of one sequence. Gives the page back when it ends.
class PageLease {
 public:
  PageLease() = default;
  PageLease(PageBook& book, FullPage page) : book_(&book), page_(page) {}
  PageLease(PageLease&& other) noexcept
      : book_(std::exchange(other.book_, nullptr)), page_(other.page_) {}
  PageLease& operator=(PageLease&& other) noexcept {
    if (this != &other) {
      reset();
      book_ = std::exchange(other.book_, nullptr);
      page_ = other.page_;
    }
    return *this;
  }
  ~PageLease() { reset(); }

  FullPage page() const { return page_; }
  void reset() {
    if (book_ != nullptr) {
      std::exchange(book_, nullptr)->end_lease(page_);
    }
  }
  /// Hands the page to the tree.
  FullPage into_node() && {
    std::exchange(book_, nullptr)->make_node(page_);
    return page_;
  }

 private:
  PageBook* book_ = nullptr;
  FullPage page_;
};

}  // namespace baleen::cache
