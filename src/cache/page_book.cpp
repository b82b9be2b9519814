#include "cache/page_book.h"

#include "base/check.h"

namespace baleen::cache {
namespace {

/// Free pages as a stack, the lowest on top at the start.
template <class Id>
std::vector<Id> all_pages(int32_t count) {
  std::vector<Id> pages;
  pages.reserve(static_cast<size_t>(count));
  for (int32_t page = count; page >= 1; --page) {
    pages.push_back(Id(page));
  }
  return pages;
}

template <class Id>
Id pop(std::vector<Id>& pages, const char* pool) {
  BALEEN_CHECK(!pages.empty(), "no free page in pool {}: room was not made before", pool);
  const Id page = pages.back();
  pages.pop_back();
  return page;
}

}  // namespace

PageBook::PageBook(int32_t num_full, int32_t num_swa, int32_t page_tokens, PageObserver* observer)
    : num_full_(num_full),
      num_swa_(num_swa),
      page_tokens_(page_tokens),
      observer_(observer),
      full_(static_cast<size_t>(num_full) + 1),
      swa_(static_cast<size_t>(num_swa) + 1),
      tokens_((static_cast<size_t>(num_full) + 1) * static_cast<size_t>(page_tokens), -1),
      free_full_(all_pages<FullPage>(num_full)),
      free_swa_(all_pages<SwaPage>(num_swa)) {
  full_counts_[static_cast<size_t>(PageUse::kFree)] = num_full;
  swa_counts_[static_cast<size_t>(PageUse::kFree)] = num_swa;
}

PageUse PageBook::use(FullPage page) const {
  const FullState& s = full_[index(page)];
  if (s.leased) {
    return PageUse::kLeased;
  }
  if (!s.node && s.heads == 0) {
    return s.holds > 0 ? PageUse::kParked : PageUse::kFree;
  }
  return s.full_locks > 0 || s.pinned_heads > 0 || s.holds > 0 ? PageUse::kProtected
                                                               : PageUse::kEvictable;
}

PageUse PageBook::use(SwaPage page) const {
  const SwaState& s = swa_[index(page)];
  if (s.owner.value() == 0) {
    return s.holds > 0 ? PageUse::kParked : PageUse::kFree;
  }
  const FullState& owner = full_[index(s.owner)];
  if (owner.leased) {
    return PageUse::kLeased;
  }
  return owner.swa_locks > 0 || s.holds > 0 ? PageUse::kProtected : PageUse::kEvictable;
}

void PageBook::leave(FullPage page) {
  BALEEN_DCHECK(page.value() > 0 && page.value() <= num_full_, "page={}", page.value());
  BALEEN_CHECK(use(page) != PageUse::kFree, "page={} is free", page.value());
  --full_counts_[static_cast<size_t>(use(page))];
  const SwaPage swa = full_[index(page)].swa;
  if (swa.value() != 0) {
    --swa_counts_[static_cast<size_t>(use(swa))];
  }
}

void PageBook::enter(FullPage page) {
  const PageUse now = use(page);
  ++full_counts_[static_cast<size_t>(now)];
  const SwaPage swa = full_[index(page)].swa;
  if (swa.value() != 0) {
    ++swa_counts_[static_cast<size_t>(use(swa))];
  }
  if (now == PageUse::kFree) {
    BALEEN_DCHECK(
        swa.value() == 0, "page={} is free but has window page {}", page.value(), swa.value());
    free_full_.push_back(page);
    if (observer_ != nullptr) {
      observer_->full_page_freed(page);
    }
  }
}

void PageBook::enter(SwaPage page) {
  const PageUse now = use(page);
  ++swa_counts_[static_cast<size_t>(now)];
  if (now == PageUse::kFree) {
    swa_[index(page)].marks = {};
    free_swa_.push_back(page);
    if (observer_ != nullptr) {
      observer_->swa_page_freed(page);
    }
  }
}

FullPage PageBook::take() {
  const FullPage page = pop(free_full_, "full");
  --full_counts_[static_cast<size_t>(PageUse::kFree)];
  full_[index(page)].leased = true;
  ++full_counts_[static_cast<size_t>(PageUse::kLeased)];
  return page;
}

void PageBook::attach_swa(FullPage page) {
  BALEEN_CHECK(full_[index(page)].swa.value() == 0, "page={} has a window page", page.value());
  const SwaPage swa = pop(free_swa_, "swa");
  --swa_counts_[static_cast<size_t>(PageUse::kFree)];
  full_[index(page)].swa = swa;
  swa_[index(swa)].owner = page;
  swa_[index(swa)].marks = {};
  ++swa_counts_[static_cast<size_t>(use(swa))];
}

void PageBook::release_swa(FullPage page) {
  FullState& s = full_[index(page)];
  const SwaPage swa = s.swa;
  if (swa.value() == 0) {
    return;
  }
  BALEEN_CHECK(
      s.swa_locks == 0, "page={}: {} users read its window rows", page.value(), s.swa_locks);
  --swa_counts_[static_cast<size_t>(use(swa))];
  s.swa = SwaPage(0);
  swa_[index(swa)].owner = FullPage(0);
  enter(swa);
}

void PageBook::move_swa(FullPage from, FullPage to) {
  FullState& source = full_[index(from)];
  FullState& target = full_[index(to)];
  BALEEN_CHECK(target.swa.value() == 0 && source.swa.value() != 0 && source.swa_locks == 0,
               "from={} to={}",
               from.value(),
               to.value());
  const SwaPage swa = source.swa;
  --swa_counts_[static_cast<size_t>(use(swa))];
  source.swa = SwaPage(0);
  target.swa = swa;
  swa_[index(swa)].owner = to;
  ++swa_counts_[static_cast<size_t>(use(swa))];
}

void PageBook::end_lease(FullPage page) {
  BALEEN_CHECK(full_[index(page)].leased, "page={} is not leased", page.value());
  release_swa(page);
  change(page, [](FullState& s) { s.leased = false; });
}

void PageBook::make_node(FullPage page) {
  BALEEN_CHECK(full_[index(page)].leased, "page={} is not leased", page.value());
  change(page, [](FullState& s) {
    s.leased = false;
    s.node = true;
  });
}

void PageBook::drop_node(FullPage page) {
  const FullState& s = full_[index(page)];
  BALEEN_CHECK(s.node && s.full_locks == 0, "page={} locks={}", page.value(), s.full_locks);
  release_swa(page);
  change(page, [](FullState& state) { state.node = false; });
}

void PageBook::unlock(FullPage node) {
  BALEEN_CHECK(full_[index(node)].full_locks > 0, "node={} is not locked", node.value());
  change(node, [](FullState& s) { --s.full_locks; });
}

void PageBook::lock_swa(FullPage node) {
  BALEEN_CHECK(full_[index(node)].swa.value() != 0, "node={} is a tombstone", node.value());
  change(node, [](FullState& s) { ++s.swa_locks; });
}

void PageBook::unlock_swa(FullPage node) {
  BALEEN_CHECK(full_[index(node)].swa_locks > 0, "node={}: window not locked", node.value());
  change(node, [](FullState& s) { --s.swa_locks; });
}

void PageBook::drop_head(FullPage page) {
  BALEEN_CHECK(full_[index(page)].heads > 0, "page={} is no head", page.value());
  change(page, [](FullState& s) { --s.heads; });
}

void PageBook::unpin_head(FullPage page) {
  BALEEN_CHECK(full_[index(page)].pinned_heads > 0, "page={} is not pinned", page.value());
  change(page, [](FullState& s) { --s.pinned_heads; });
}

void PageBook::unhold(FullPage page) {
  BALEEN_CHECK(full_[index(page)].holds > 0, "page={} is not held", page.value());
  change(page, [](FullState& s) { --s.holds; });
}

void PageBook::hold(SwaPage page) {
  BALEEN_CHECK(use(page) != PageUse::kFree, "window page={} is free", page.value());
  --swa_counts_[static_cast<size_t>(use(page))];
  ++swa_[index(page)].holds;
  ++swa_counts_[static_cast<size_t>(use(page))];
}

void PageBook::unhold(SwaPage page) {
  BALEEN_CHECK(swa_[index(page)].holds > 0, "window page={} is not held", page.value());
  --swa_counts_[static_cast<size_t>(use(page))];
  --swa_[index(page)].holds;
  enter(page);
}

}  // namespace baleen::cache
