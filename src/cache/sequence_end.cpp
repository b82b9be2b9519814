#include <algorithm>
#include <utility>

#include "base/check.h"
#include "cache/sequence_cache.h"

namespace baleen::cache {

std::optional<CaptureJob> SequenceCache::finish(SequenceLease&& lease, int32_t next_id) {
  return end(std::move(lease), next_id);
}

std::optional<CaptureJob> SequenceCache::preempt(SequenceLease&& lease, int32_t next_id) {
  return end(std::move(lease), next_id);
}

std::optional<CaptureJob> SequenceCache::end(SequenceLease&& lease, int32_t next_id) {
  Sequence& s = sequence_of(lease.slot());
  lease.cache_ = nullptr;
  std::optional<CaptureJob> job;
  if (s.share && s.committed > s.cached_tokens) {
    if (next_id >= 0) {
      s.next_id = next_id;
    }
    const int32_t position = s.committed / geometry().resume_step * geometry().resume_step;
    // The window rows are held first: entering the tree may cost a page its rows.
    const CacheTicket ticket = tickets_.open();
    std::vector<CaptureJob::WindowPage> window;
    if (position > 0 && capture_.turn) {
      window = window_of(s, position);
      for (const CaptureJob::WindowPage& page : window) {
        radix_.book().hold(page.page);
        tickets_.find(ticket)->swa_pages.push_back(page.page);
      }
    }
    share_blocks(s, /*ending=*/true);
    settle(s);
    if (position > 0 && capture_.turn) {
      job = capture_end(s, position, ticket);
    }
    if (job) {
      job->window = std::move(window);
    } else {
      complete(ticket);
    }
    // Points whose payload a step in flight still writes outlive the sequence.
    std::erase_if(s.pending, [&](CheckpointSlot slot) {
      ResumePoint& point = radix_.points().at(slot);
      if (point.written || !place(s, point)) {
        return false;
      }
      orphan(slot);
      return true;
    });
  }
  let_go(s);
  return job;
}

/// Whether the rings still have what a resume point at `position` needs: carry rows and open group.
bool SequenceCache::rings_hold(const Sequence& s, int32_t position) const {
  const CacheGeometry& g = geometry();
  const int32_t open = g.c128_ratio == 0 ? 0 : position % g.c128_ratio;
  return (g.c4_ratio == 0 || s.written_end <= position - g.c4_ratio + rings_.c4_rows) &&
         (open == 0 || s.written_end <= position - open + rings_.c128_rows);
}

std::optional<CaptureJob> SequenceCache::capture_end(Sequence& s,
                                                     int32_t position,
                                                     CacheTicket ticket) {
  PointTable& points = radix_.points();
  ResumePoint wanted;
  wanted.position = position;
  BALEEN_CHECK(place(s, wanted), "position={} committed={}", position, s.committed);
  const CheckpointSlot twin = points.find(
      wanted.node, s.space, radix_.book().tokens(wanted.head), position % geometry().page_tokens);
  if (twin.valid()) {
    points.touch(twin, radix_.tree().tick());
    return std::nullopt;
  }
  if (!rings_hold(s, position)) {
    ++radix_.stats().captures_skipped[static_cast<size_t>(CaptureSkip::kInFlight)];
    return std::nullopt;
  }
  const CheckpointSlot slot = take_point(s, position, PointKind::kTurn);
  if (!slot.valid()) {
    return std::nullopt;
  }
  ResumePoint& point = points.at(slot);
  keep_open_tickets(s);
  // A step in flight replaces the streams that the executor carries for the request.
  point.has_streams = position == s.committed && s.tickets.empty();
  place(s, point);
  tickets_.find(ticket)->writes.push_back(slot);
  CaptureJob job = job_of(slot, ticket, s);
  orphan(slot);
  return job;
}

void SequenceCache::abort(SequenceLease&& lease) {
  Sequence& s = sequence_of(lease.slot());
  lease.cache_ = nullptr;
  let_go(s);
}

void SequenceCache::let_go(Sequence& s) {
  RadixTree& tree = radix_.tree();
  give_up(s);
  keep_open_tickets(s);
  for (const PageLease& lease : s.leases) {
    hold_in_flight(s, lease.page());
  }
  for (const CacheTicket ticket : s.tickets) {
    TicketHolds& holds = *tickets_.find(ticket);
    if (s.node != RadixTree::kRoot) {
      tree.lock(s.node, RadixTree::kRoot);
      holds.nodes.push_back(s.node);
    }
    if (s.window_locked) {
      tree.lock_window(s.node);
      holds.windows.push_back(s.node);
    }
  }
  if (s.window_locked) {
    tree.unlock_window(s.node);
  }
  radix_.unlock(s.node);
  radix_.spaces().release(s.space);
  s.leases.clear();
  s.pages.clear();
  s.tickets.clear();
  s.node = RadixTree::kRoot;
  s.shared_blocks = 0;
  s.window_locked = false;
  s.running = false;
}

CacheTicket SequenceCache::open_step() {
  return tickets_.open();
}

void SequenceCache::join(CacheTicket step, const SequenceLease& lease, int32_t end) {
  BALEEN_CHECK(tickets_.is_open(step), "ticket={} is not open", step.value());
  Sequence& s = sequence_of(lease.slot());
  BALEEN_CHECK(end <= lease.allocated(), "end={} allocated={}", end, lease.allocated());
  keep_open_tickets(s);
  s.tickets.push_back(step);
  s.written_end = std::max(s.written_end, end);
}

void SequenceCache::extend(const SequenceLease& lease, int32_t end) {
  Sequence& s = sequence_of(lease.slot());
  BALEEN_CHECK(end <= lease.allocated(), "end={} allocated={}", end, lease.allocated());
  s.written_end = std::max(s.written_end, end);
}

CacheTicket SequenceCache::hold_blocks(const SequenceLease& lease,
                                       int32_t first_block,
                                       int32_t num_blocks) {
  PageBook& book = radix_.book();
  const CacheTicket ticket = tickets_.open();
  TicketHolds& holds = *tickets_.find(ticket);
  for (int32_t block = first_block; block < first_block + num_blocks; ++block) {
    const FullPage page = lease.full_pages()[static_cast<size_t>(block)];
    book.hold(page);
    holds.full_pages.push_back(page);
    if (const SwaPage swa = book.swa_of(page); swa.value() != 0) {
      book.hold(swa);
      holds.swa_pages.push_back(swa);
    }
  }
  return ticket;
}

void SequenceCache::complete(CacheTicket ticket) {
  TicketHolds* holds = tickets_.find(ticket);
  if (holds == nullptr) {
    ++radix_.stats().late_events;
    return;
  }
  give_back(*holds);
  // Points become visible after the ticket is closed; taken out because that may open others.
  const std::vector<CheckpointSlot> writes = std::move(holds->writes);
  tickets_.close(ticket);
  for (const CheckpointSlot slot : writes) {
    payload_written(slot);
  }
}

void SequenceCache::give_back(TicketHolds& holds) {
  PageBook& book = radix_.book();
  for (const SwaPage page : holds.swa_pages) {
    book.unhold(page);
  }
  for (const FullPage page : holds.full_pages) {
    book.unhold(page);
  }
  for (const FullPage node : holds.windows) {
    radix_.tree().unlock_window(node);
  }
  for (const FullPage node : holds.nodes) {
    radix_.unlock(node);
  }
  for (const CheckpointSlot slot : holds.pins) {
    radix_.unpin(slot);
  }
}

void SequenceCache::flush() {
  for (Sequence& s : sequences_) {
    give_up(s);
  }
  tickets_.for_each_open([&](const TicketHolds& holds) {
    for (const CheckpointSlot slot : holds.writes) {
      ResumePoint& point = radix_.points().at(slot);
      if (point.state == ResumePoint::State::kPending) {  // an orphan
        ++radix_.stats().captures_skipped[static_cast<size_t>(CaptureSkip::kAborted)];
        drop_orphan(slot);
        point.state = ResumePoint::State::kDoomed;
      }
    }
  });
  radix_.flush();
}

}  // namespace baleen::cache
