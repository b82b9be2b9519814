#include <algorithm>

#include "engine/scheduler.h"

// Drafts in a step: tokens that nobody waits for. They take what decoding and at least half of what
// prompts could use leaves, and no page that is needed otherwise.

namespace baleen::engine {

/// Drafts of a row that find pages; takes those from `left`.
int32_t Scheduler::fitting_drafts(const ScheduledRow& row, int32_t num_drafts, Room& left) const {
  if (cache_ == nullptr) {
    return num_drafts;
  }
  const cache::SequenceLease& pages = at(row).state.get<Decoding>()->pages;
  const int32_t plain_end = row.end();
  const int32_t plain = cache_->pages_needed(pages, plain_end);
  const int32_t more = cache_->pages_needed(pages, plain_end + num_drafts) - plain;
  if (more > std::max(0, std::min(left.full, left.swa))) {
    // The rest of the page that the row has anyway.
    const int32_t page_end = pages.allocated() + plain * cache_->geometry().page_tokens;
    return std::min(num_drafts, page_end - plain_end);
  }
  left.full -= more;
  left.swa -= more;
  return num_drafts;
}

/// Makes verify rows of the planned decode rows.
void Scheduler::add_drafts(std::vector<ScheduledRow>& rows,
                           int32_t num_prefilling,
                           int32_t& budget,
                           Room& left) const {
  const auto num_rows = static_cast<int32_t>(rows.size());
  // Each prompt under way keeps a token of the step.
  int32_t for_drafts = num_prefilling > 0 ? std::min(budget / 2, budget - num_prefilling) : budget;
  for (ScheduledRow& row : rows) {
    const int32_t wanted = std::min(keys_.num_drafts(row, num_rows), for_drafts);
    if (wanted <= 0) {
      continue;
    }
    const int32_t num_drafts = fitting_drafts(row, wanted, left);
    if (num_drafts > 0) {
      row.kind = RowKind::kVerify;
      row.num_drafts = num_drafts;
      row.num_tokens += num_drafts;
      for_drafts -= num_drafts;
      budget -= num_drafts;
    }
  }
}

/// Pages for a row; its drafts are given up if they are what does not fit.
bool Scheduler::reserve(ScheduledRow& row) {
  cache::SequenceLease& pages = *at(row).state.pages();
  if (cache_->reserve(pages, row.end())) {
    return true;
  }
  if (row.num_drafts == 0) {
    return false;
  }
  row.kind = RowKind::kDecode;
  row.num_tokens -= row.num_drafts;
  row.num_drafts = 0;
  return cache_->reserve(pages, row.end());
}

}  // namespace baleen::engine
