#include <algorithm>

#include "base/check.h"
#include "cache/sequence_cache.h"

// A draft row is computed from the position's streams and the token after it. So of a cached prefix
// only the last row depends on what follows. Rows that do not fit are hidden from the draft layer;
// verification never trusts drafts, so this is about acceptance alone.

namespace baleen::cache {

int32_t SequenceCache::id_at(const Sequence& s, int32_t position) const {
  if (position >= s.committed) {
    return position == s.committed ? s.next_id : -1;
  }
  const int32_t page_tokens = geometry().page_tokens;
  const FullPage page = s.pages[static_cast<size_t>(position / page_tokens)];
  return radix_.book().tokens(page)[position % page_tokens];
}

void SequenceCache::set_draft_rows(Sequence& s,
                                   const PrefixMatch& match,
                                   std::span<const int32_t> ids) {
  s.draft_hole = -1;
  s.draft_begin = s.drafts ? 0 : kNoDraftRows;
  if (!s.drafts || match.hit == 0) {
    return;
  }
  if (match.point.valid()) {
    const ResumePoint& point = radix_.points().at(match.point);
    const int32_t next_id = ids[static_cast<size_t>(match.hit)];
    s.draft_begin = std::min(point.draft_begin, match.hit);
    if (s.draft_begin < match.hit && point.next_id != next_id &&
        !recomputes_draft_row(s, match, next_id)) {
      s.draft_hole = match.hit - 1;
    }
  } else {
    for (int32_t left = geometry().window_pages(); left > 0; --left) {  // oldest page first
      const int32_t end = match.hit - (left - 1) * geometry().page_tokens;
      if (end > 0) {
        see_draft_rows(
            s,
            radix_.book().swa_of(s.pages[static_cast<size_t>(end / geometry().page_tokens - 1)]),
            end,
            ids[static_cast<size_t>(end)]);
      }
    }
  }
  if (s.draft_begin <= match.hit - geometry().window) {
    s.draft_begin = 0;  // nothing of the window is hidden
  }
}

bool SequenceCache::recomputes_draft_row(const Sequence& s,
                                         const PrefixMatch& match,
                                         int32_t next_id) const {
  if (!s.drafts || !match.point.valid()) {
    return false;
  }
  const ResumePoint& point = radix_.points().at(match.point);
  return point.has_streams && point.draft_begin < match.hit && point.next_id != next_id;
}

DraftMarks SequenceCache::draft_marks_of(const Sequence& s, int32_t block) const {
  const int32_t page_tokens = geometry().page_tokens;
  const int32_t begin = block * page_tokens;
  if (!s.drafts) {
    return {.valid_from = page_tokens, .next_id = -1};
  }
  const int32_t valid = std::max(s.draft_begin, s.draft_hole + 1);
  return {.valid_from = std::clamp(valid - begin, 0, page_tokens),
          .next_id = id_at(s, begin + page_tokens)};
}

void SequenceCache::hide_draft_row(Sequence& s, int32_t position) {
  if (s.draft_hole >= 0 && s.draft_hole != position) {
    s.draft_begin = std::max(s.draft_begin, s.draft_hole + 1);
  }
  s.draft_hole = position;
}

/// The sequence reads the draft rows of a shared page that ends at `end`; its own next token there
/// is `next_id`.
void SequenceCache::see_draft_rows(Sequence& s, SwaPage page, int32_t end, int32_t next_id) {
  if (!s.drafts) {
    return;
  }
  const DraftMarks& marks = radix_.book().draft_marks(page);
  if (marks.valid_from > 0) {
    s.draft_begin = std::max(s.draft_begin, end - geometry().page_tokens + marks.valid_from);
  }
  if (s.draft_begin < end && marks.next_id != next_id) {
    hide_draft_row(s, end - 1);
  }
}

}  // namespace baleen::cache
