#include "cache/cache_workload.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace baleen::cache {

CacheWorkload::CacheWorkload(const WorkloadOptions& options)
    : geometry_(options.cache.geometry),
      model_(options.cache.geometry,
             options.cache.sizes,
             options.cache.rings,
             options.cache.request_slots),
      cache_(options.cache, &model_) {
  for (int32_t slot = options.cache.request_slots - 1; slot >= 0; --slot) {
    free_slots_.push_back(RequestSlot(slot));
  }
}

CacheWorkload::~CacheWorkload() {
  sequences_.clear();
}

void CacheWorkload::extend(Running& s, int32_t count) {
  while (static_cast<int32_t>(s.ids.size()) < count) {
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    s.ids.push_back(static_cast<int32_t>(random_ % 1000) + 100);
  }
  if (s.tags.size() < s.ids.size()) {
    s.tags = PayloadModel::tags_of(s.space, s.ids);
  }
}

int CacheWorkload::admit(std::vector<int32_t> ids, const Admit& how) {
  if (free_slots_.empty()) {
    return -1;
  }
  const RequestSlot slot = free_slots_.back();
  auto admission = cache_.admit(slot,
                                {.ids = ids,
                                 .space = how.space,
                                 .reuse_limit = how.reuse_limit,
                                 .drafts = how.drafts,
                                 .share = how.share},
                                how.chunk);
  if (!admission) {
    return -1;
  }
  free_slots_.pop_back();
  resets_.push_back(slot);
  if (admission->copy) {
    copies_.push_back(*std::move(admission->copy));
  }
  const int sequence = next_sequence_++;
  Running& s = sequences_[sequence];
  s.lease = std::move(admission->lease);
  s.space = how.space;
  s.prompt = static_cast<int32_t>(ids.size());
  s.ids = std::move(ids);
  s.computed = s.lease.committed();
  s.drafts = how.drafts;
  extend(s, s.prompt + 1);
  return sequence;
}

/// The rows, cut to what their sequences have left to do, that get pages. If together they fit the
/// budget, all must.
std::vector<CacheWorkload::Work> CacheWorkload::with_room(const std::vector<Work>& rows) {
  const PageBudget budget = cache_.budget();
  std::vector<Work> planned;
  int32_t pages = 0;
  for (Work work : rows) {
    const Running& s = sequences_.at(work.sequence);
    if (s.computed < s.prompt) {
      work.tokens = std::min(work.tokens, s.prompt - s.computed);
      work.refused = 0;
    }
    if (work.tokens > 0) {
      planned.push_back(work);
      pages += cache_.pages_needed(s.lease, s.computed + work.tokens + work.refused);
    }
  }
  const size_t num_planned = planned.size();
  std::erase_if(planned, [&](const Work& work) {
    Running& s = sequences_.at(work.sequence);
    return !cache_.reserve(s.lease, s.computed + work.tokens + work.refused);
  });
  if (pages <= std::min(budget.full(), budget.swa()) && planned.size() < num_planned) {
    budget_fault_ = "rows that fit the budget found no room";
  }
  return planned;
}

bool CacheWorkload::submit(const std::vector<Work>& rows) {
  PayloadModel::Step step;
  Result result;
  result.step = cache_.open_step();
  for (const Work& work : with_room(rows)) {
    Running& s = sequences_.at(work.sequence);
    const int32_t begin = s.computed;
    const bool prefill = begin < s.prompt;
    const int32_t kept = work.tokens;
    const int32_t refused = work.refused;
    const int32_t end = begin + kept + refused;
    extend(s, end + 1);
    PayloadModel::Row row;
    row.slot = s.lease.slot();
    row.begin = begin;
    row.ids.assign(s.ids.begin(), s.ids.begin() + end + 1);
    row.tags.assign(s.tags.begin(), s.tags.begin() + end);
    for (int32_t q = begin + kept; q < end; ++q) {  // other tokens than the ones to come
      row.tags[static_cast<size_t>(q)] ^= 0x5555;
      row.ids[static_cast<size_t>(q) + 1] ^= 1;
    }
    row.refusable = prefill ? 0 : kept + refused - 1;
    row.drafts = s.drafts;
    row.draft_begin = s.lease.draft_begin();
    row.draft_hole = s.lease.draft_hole();
    if (prefill) {
      cache_.plan_captures(s.lease, begin, end, captures_);
    }
    cache_.join(result.step, s.lease, end);
    s.computed += kept;
    result.rows.push_back({work.sequence, kept, refused});
    step.rows.push_back(std::move(row));
  }
  step.captures = std::exchange(captures_, {});
  step.copies = std::exchange(copies_, {});
  step.resets = std::exchange(resets_, {});
  for (const CaptureJob& job : step.captures) {
    result.jobs.push_back(job.ticket);
  }
  for (const ResumeCopy& copy : step.copies) {
    result.jobs.push_back(copy.ticket);
  }
  last_captures_ = step.captures;
  cache_.take_page_changes(step.pages);
  const bool any = !step.rows.empty();
  model_.submit(std::move(step));
  results_.push_back(std::move(result));
  return any;
}

void CacheWorkload::process() {
  if (results_.empty()) {
    return;
  }
  const Result result = std::move(results_.front());
  results_.erase(results_.begin());
  model_.run_oldest();
  for (const CacheTicket job : result.jobs) {
    cache_.complete(job);
  }
  cache_.complete(result.step);
  for (const Work& work : result.rows) {
    const auto found = sequences_.find(work.sequence);
    if (found == sequences_.end()) {
      continue;
    }
    Running& s = found->second;
    const int32_t begin = s.lease.committed();
    cache_.commit(
        s.lease,
        std::span(s.ids).subspan(static_cast<size_t>(begin), static_cast<size_t>(work.tokens)),
        s.ids[static_cast<size_t>(begin + work.tokens)]);
  }
}

void CacheWorkload::process_all() {
  while (!results_.empty()) {
    process();
  }
}

void CacheWorkload::end(int sequence, bool keep) {
  const auto found = sequences_.find(sequence);
  BALEEN_CHECK(found != sequences_.end(), "sequence={}", sequence);
  Running& s = found->second;
  const RequestSlot slot = s.lease.slot();
  free_slots_.push_back(slot);
  if (keep) {
    std::optional<CaptureJob> job = cache_.finish(std::move(s.lease));
    if (job) {
      captures_.push_back(*std::move(job));
    }
  } else {
    cache_.abort(std::move(s.lease));
  }
  // A copy that no step has taken up yet must not touch the slot's next sequence.
  std::erase_if(copies_, [&](const ResumeCopy& copy) {
    if (copy.slot == slot) {
      cache_.complete(copy.ticket);
    }
    return copy.slot == slot;
  });
  sequences_.erase(found);
}

void CacheWorkload::run(int sequence, int32_t chunk, int32_t decode) {
  Running& s = sequences_.at(sequence);
  while (s.computed < s.prompt) {
    BALEEN_CHECK(submit({{sequence, chunk, 0}}), "no room for a chunk");
    process_all();
  }
  for (int32_t i = 0; i < decode; ++i) {
    BALEEN_CHECK(submit({{sequence, 1, 0}}), "no room for a token");
    process_all();
  }
}

std::string CacheWorkload::fault() const {
  if (!model_.fault().empty()) {
    return model_.fault();
  }
  return !budget_fault_.empty() ? budget_fault_ : audit(cache_);
}

}  // namespace baleen::cache
