#include <algorithm>

#include "base/check.h"
#include "cache/sequence_cache.h"

// A resume point is pending until its payload is written (the ticket of the writing step is
// complete) and the tree has the node it hangs on. If its sequence ends in between, the point keeps
// that node itself (an orphan); if the position never becomes final, the point is given up.

namespace baleen::cache {

std::vector<CaptureJob::WindowPage> SequenceCache::window_of(const Sequence& s,
                                                             int32_t position) const {
  std::vector<CaptureJob::WindowPage> window;
  const int32_t page_tokens = geometry().page_tokens;
  for (int32_t block = geometry().window_begin(position) / page_tokens;
       block * page_tokens < position;
       ++block) {
    const SwaPage page = radix_.book().swa_of(s.pages[static_cast<size_t>(block)]);
    BALEEN_CHECK(page.value() != 0, "position={} block={} has no window rows", position, block);
    window.push_back({block, page});
  }
  return window;
}

CheckpointSlot SequenceCache::take_point(Sequence& s, int32_t position, PointKind kind) {
  const int32_t open_blocks = geometry().open_blocks_of(position);
  CaptureSkip skip{};
  if (!radix_.make_point_room(open_blocks, skip)) {
    ++radix_.stats().captures_skipped[static_cast<size_t>(skip)];
    return {};
  }
  const CheckpointSlot slot = radix_.points().take(open_blocks);
  ResumePoint& point = radix_.points().at(slot);
  point.kind = kind;
  point.space = s.space;
  point.position = position;
  point.owner = RequestSlot(static_cast<int32_t>(&s - sequences_.data()));
  return slot;
}

CaptureJob SequenceCache::job_of(CheckpointSlot target,
                                 CacheTicket ticket,
                                 const Sequence& s) const {
  const ResumePoint& point = radix_.points().at(target);
  CaptureJob job;
  job.ticket = ticket;
  job.slot = RequestSlot(static_cast<int32_t>(&s - sequences_.data()));
  job.position = point.position;
  job.target = target;
  job.open_blocks.assign(point.open_blocks().begin(), point.open_blocks().end());
  job.with_streams = point.has_streams;
  return job;
}

void SequenceCache::plan_captures(SequenceLease& lease,
                                  int32_t begin,
                                  int32_t end,
                                  std::vector<CaptureJob>& jobs) {
  Sequence& s = sequence_of(lease.slot());
  BALEEN_CHECK(begin >= s.committed && begin < end && end <= lease.allocated(),
               "begin={} end={} committed={} allocated={}",
               begin,
               end,
               s.committed,
               lease.allocated());
  if (!s.share) {
    return;
  }
  const int32_t step = geometry().prompt_step;
  const int32_t prompt_end = capture_.prompt ? (s.prompt_tokens - 1) / step * step : -1;
  const int32_t branch = capture_.branch ? s.branch : -1;
  const int32_t last = std::min(end, s.prompt_tokens);
  for (int32_t position = (begin / step + 1) * step; position <= last; position += step) {
    PointKind kind{};
    if (position == prompt_end) {
      kind = PointKind::kPrompt;
    } else if (position == branch) {
      kind = PointKind::kBranch;
    } else if (capture_.interval > 0 && position % capture_.interval == 0) {
      kind = PointKind::kInterval;
    } else {
      continue;
    }
    const CheckpointSlot slot = take_point(s, position, kind);
    if (!slot.valid()) {
      continue;
    }
    radix_.points().at(slot).has_streams = true;
    const CacheTicket ticket = tickets_.open();
    tickets_.find(ticket)->writes.push_back(slot);
    s.tickets.push_back(ticket);
    s.pending.push_back(slot);
    CaptureJob& job = jobs.emplace_back(job_of(slot, ticket, s));
    job.in_pass = true;
    job.window = window_of(s, position);
  }
}

/// Finds where the point hangs; false if the tree is not that far yet.
bool SequenceCache::place(const Sequence& s, ResumePoint& point) const {
  const int32_t depth = point.position / geometry().page_tokens;
  if (point.position > s.committed || depth > s.shared_blocks) {
    return false;
  }
  point.node = depth == 0 ? RadixTree::kRoot : s.pages[static_cast<size_t>(depth - 1)];
  point.head = point.position % geometry().page_tokens == 0 ? FullPage(0)
                                                            : s.pages[static_cast<size_t>(depth)];
  if (s.drafts) {
    point.next_id = id_at(s, point.position);
    const int32_t valid = std::max(s.draft_begin, s.draft_hole + 1);
    point.draft_begin = std::min(valid, point.position);
  }
  return true;
}

/// A placed, written point becomes visible, unless there is one at the same place.
void SequenceCache::show(CheckpointSlot slot) {
  PointTable& points = radix_.points();
  PageBook& book = radix_.book();
  const ResumePoint& point = points.at(slot);
  const int64_t now = radix_.tree().tick();
  const int32_t extra = point.position % geometry().page_tokens;
  const CheckpointSlot twin = points.find(point.node, point.space, book.tokens(point.head), extra);
  if (twin.valid()) {
    points.touch(twin, now);
    points.free(slot);
    return;
  }
  if (point.head.value() != 0) {
    book.add_head(point.head);
  }
  ++radix_.stats().captures[static_cast<size_t>(point.kind)];
  points.show(slot, now);
}

void SequenceCache::settle(Sequence& s) {
  std::erase_if(s.pending, [&](CheckpointSlot slot) {
    ResumePoint& point = radix_.points().at(slot);
    if (!point.written || !place(s, point)) {
      return false;
    }
    show(slot);
    return true;
  });
}

/// A placed point whose payload is still being written keeps its path and its head itself.
void SequenceCache::orphan(CheckpointSlot slot) {
  ResumePoint& point = radix_.points().at(slot);
  point.owner = RequestSlot();
  radix_.tree().lock(point.node, RadixTree::kRoot);
  radix_.spaces().add_ref(point.space);
  if (point.head.value() != 0) {
    radix_.book().add_head(point.head);
    radix_.book().pin_head(point.head);
  }
}

/// An orphan becomes visible if it is written, and gives back what it keeps.
void SequenceCache::drop_orphan(CheckpointSlot slot) {
  const ResumePoint point = radix_.points().at(slot);
  if (point.written) {
    show(slot);
  }
  if (point.head.value() != 0) {
    radix_.book().unpin_head(point.head);
    radix_.book().drop_head(point.head);
  }
  radix_.unlock(point.node);
  radix_.spaces().release(point.space);
}

/// The payload of a pending or given-up point is complete.
void SequenceCache::payload_written(CheckpointSlot slot) {
  ResumePoint& point = radix_.points().at(slot);
  if (point.state == ResumePoint::State::kDoomed) {
    radix_.points().free(slot);
    return;
  }
  point.written = true;
  if (point.owner.valid()) {
    settle(sequence_of(point.owner));
  } else {
    drop_orphan(slot);
  }
}

/// Gives up all points of a sequence that are not visible yet.
void SequenceCache::give_up(Sequence& s) {
  for (const CheckpointSlot slot : s.pending) {
    ResumePoint& point = radix_.points().at(slot);
    ++radix_.stats().captures_skipped[static_cast<size_t>(CaptureSkip::kAborted)];
    point.owner = RequestSlot();
    if (point.written) {
      radix_.points().free(slot);
    } else {
      point.state = ResumePoint::State::kDoomed;
    }
  }
  s.pending.clear();
}

bool SequenceCache::will_reach(CheckpointSlot target,
                               const SequenceKey& key,
                               const PrefixMatch& match) const {
  const ResumePoint& point = radix_.points().at(target);
  if (!key.share || point.state != ResumePoint::State::kPending || point.owner.valid() ||
      point.position <= match.hit || point.position > most_reuse(key) ||
      point.space != radix_.spaces().find(key.space)) {
    return false;
  }
  const PageBook& book = radix_.book();
  const int32_t page_tokens = geometry().page_tokens;
  int32_t begin = geometry().floor_to_page(point.position);
  const auto agrees = [&](FullPage page, int32_t count) {
    return std::equal(book.tokens(page), book.tokens(page) + count, key.ids.data() + begin);
  };
  if (point.head.value() != 0 && !agrees(point.head, point.position - begin)) {
    return false;
  }
  for (FullPage node = point.node; node != RadixTree::kRoot;
       node = radix_.tree().node(node).parent) {
    begin -= page_tokens;
    if (!agrees(node, page_tokens)) {
      return false;
    }
  }
  return true;
}

}  // namespace baleen::cache
