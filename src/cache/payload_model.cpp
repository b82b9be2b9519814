#include "cache/payload_model.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"

namespace baleen::cache {
namespace {

constexpr PayloadModel::Tag kPaint = 0xFFFFFFFFFFFFFFFFULL;

size_t at(int64_t index) {
  return static_cast<size_t>(index);
}

PayloadModel::Tag mix(PayloadModel::Tag state, PayloadModel::Tag value) {
  state = (state ^ value) * 0x9E3779B97F4A7C15ULL;
  return state ^ (state >> 29);
}

}  // namespace

PayloadModel::PayloadModel(const CacheGeometry& geometry,
                           const ShadowRadixSizes& sizes,
                           const StateRings& rings,
                           int32_t request_slots)
    : geometry_(geometry), rings_(rings) {
  const int64_t full = sizes.full_pages + 1;
  const int64_t window_pages = sizes.swa_pages + 1;
  swa_.assign(at(window_pages * geometry.page_tokens), kPaint);
  draft_ = swa_;
  c4_.assign(at(full * geometry.page_tokens / geometry.c4_ratio), kPaint);
  c128_.assign(at(full * geometry.page_tokens / geometry.c128_ratio), kPaint);
  ring4_.assign(at(window_pages * rings.c4_rows), kPaint);
  ring128_.assign(at((request_slots + 1) * rings.c128_rows), kPaint);
  checkpoints_.resize(at(sizes.checkpoint_slots));
  for (int32_t slot = 0; slot < sizes.checkpoint_slots; ++slot) {
    checkpoint_freed(CheckpointSlot(slot));
  }
  open_.assign(at(sizes.open_group_blocks * geometry.open_group_rows), kPaint);
  tables_.resize(at(request_slots));
  recompute_.resize(at(request_slots));
}

std::vector<PayloadModel::Tag> PayloadModel::tags_of(const CacheNamespace& space,
                                                     std::span<const int32_t> ids) {
  Tag tag = 1;
  for (const char c : space.key()) {
    tag = mix(tag, static_cast<unsigned char>(c));
  }
  std::vector<Tag> tags;
  tags.reserve(ids.size());
  for (const int32_t id : ids) {
    tag = mix(tag, static_cast<Tag>(id) + 1);
    tags.push_back(tag);
  }
  return tags;
}

PayloadModel::Tag PayloadModel::draft_tag(Tag tag, int32_t next_id) {
  return mix(tag, static_cast<Tag>(next_id) + 7);
}

const PayloadModel::Pages& PayloadModel::table(RequestSlot slot, int32_t position) const {
  return tables_[at(slot.value())].at(at(position / geometry_.page_tokens));
}

PayloadModel::Tag& PayloadModel::swa(SwaPage page, int32_t position) {
  return swa_[at(int64_t{page.value()} * geometry_.page_tokens + position % geometry_.page_tokens)];
}
PayloadModel::Tag& PayloadModel::draft(SwaPage page, int32_t position) {
  return draft_[at(int64_t{page.value()} * geometry_.page_tokens +
                   position % geometry_.page_tokens)];
}
PayloadModel::Tag& PayloadModel::ring4(SwaPage page, int32_t position) {
  return ring4_[at(c4_state_slot(page, TokenPos(position), rings_.c4_rows).value())];
}
PayloadModel::Tag& PayloadModel::ring128(RequestSlot slot, int32_t position) {
  return ring128_[at(c128_state_slot(slot, TokenPos(position), rings_.c128_rows).value())];
}

void PayloadModel::expect(const char* what, int32_t position, Tag found, Tag wanted) {
  if (found != wanted && fault_.empty()) {
    fault_ = fmt::format("{} row of position {} is {}",
                         what,
                         position,
                         found == kPaint ? "painted" : "of another sequence");
  }
}

void PayloadModel::run_oldest() {
  BALEEN_CHECK(!steps_.empty(), "no step is in flight");
  const Step step = std::move(steps_.front());
  steps_.pop_front();
  // Captures of ended sequences see the tables and rings as they were before this step's changes.
  for (const CaptureJob& job : step.captures) {
    if (!job.in_pass) {
      capture(job, nullptr);
    }
  }
  for (const RequestSlot slot : step.resets) {
    tables_[at(slot.value())].clear();
    recompute_[at(slot.value())] = {};
    std::fill_n(ring128_.begin() + (slot.value() + 1) * rings_.c128_rows, rings_.c128_rows, kPaint);
  }
  for (const PageChange& change : step.pages) {
    std::vector<Pages>& table = tables_[at(change.slot.value())];
    table.resize(std::max(table.size(), at(change.block) + 1));
    table[at(change.block)] = {change.full, change.swa};
  }
  for (const ResumeCopy& copy : step.copies) {
    resume(copy);
  }
  for (const Row& row : step.rows) {
    recompute_draft_row(row);
    read(row);
    // Carry and open rows from before the pass are in the rings only until it writes them.
    for (const CaptureJob& job : step.captures) {
      if (job.in_pass && job.slot == row.slot) {
        capture(job, &row);
      }
    }
    write(row);
    for (const CaptureJob& job : step.captures) {
      if (job.in_pass && job.slot == row.slot) {
        save_window(job);
      }
    }
  }
}

void PayloadModel::save_window(const CaptureJob& job) {
  Checkpoint& point = checkpoints_[at(job.target.value())];
  const int32_t first = job.position - geometry_.window;
  for (const CaptureJob::WindowPage& page : job.window) {
    const int32_t begin = std::max({first, 0, page.block * geometry_.page_tokens});
    const int32_t end = std::min(job.position, (page.block + 1) * geometry_.page_tokens);
    for (int32_t q = begin; q < end; ++q) {
      point.window[at(q - first)] = swa(page.page, q);
      point.drafts[at(q - first)] = draft(page.page, q);
    }
  }
}

/// The streams at the resume point and the new next token give the last draft row anew.
void PayloadModel::recompute_draft_row(const Row& row) {
  DraftRow& wanted = recompute_[at(row.slot.value())];
  if (wanted.position < 0) {
    return;
  }
  const int32_t q = wanted.position;
  expect("streams", q, wanted.streams, row.tags[at(q)]);
  draft(table(row.slot, q).swa, q) = draft_tag(wanted.streams, row.ids[at(q + 1)]);
  wanted = {};
}

void PayloadModel::capture(const CaptureJob& job, const Row* row) {
  Checkpoint& point = checkpoints_[at(job.target.value())];
  const int32_t page_tokens = geometry_.page_tokens;
  const auto window_page = [&](int32_t position) {
    for (const CaptureJob::WindowPage& page : job.window) {
      if (page.block == position / page_tokens) {
        return page.page;
      }
    }
    return SwaPage(0);
  };
  if (row == nullptr) {
    save_window(job);
  }
  const auto own = [&](int32_t q) { return row != nullptr && q >= row->begin; };
  for (int32_t i = 0; i < geometry_.c4_ratio; ++i) {
    const int32_t q = job.position - geometry_.c4_ratio + i;
    point.carry[at(i)] = own(q) ? row->tags[at(q)] : ring4(window_page(q), q);
  }
  const int32_t group = job.position / geometry_.c128_ratio * geometry_.c128_ratio;
  for (int32_t q = group; q < job.position; ++q) {
    const OpenGroupBlock block = job.open_blocks.at(at((q - group) / geometry_.open_group_rows));
    open_[at(block.value() * geometry_.open_group_rows + (q - group) % geometry_.open_group_rows)] =
        own(q) ? row->tags[at(q)] : ring128(job.slot, q);
  }
  point.streams = kPaint;
  if (job.with_streams && row != nullptr) {
    point.streams = row->tags[at(job.position - 1)];
  } else if (job.with_streams) {
    point.streams = swa(window_page(job.position - 1), job.position - 1);
  }
}

void PayloadModel::resume(const ResumeCopy& copy) {
  const Checkpoint& point = checkpoints_[at(copy.source.value())];
  const int32_t page_tokens = geometry_.page_tokens;
  const int32_t first = copy.position - geometry_.window;
  const auto copy_entries = [&](std::vector<Tag>& pool, int32_t ratio, const ResumeCopy::Block& b) {
    const int32_t rows = page_tokens / ratio;
    for (int32_t i = 0; i < rows && (b.block * rows + i + 1) * ratio <= copy.position; ++i) {
      pool[at(b.target.value() * rows + i)] = pool[at(b.source.value() * rows + i)];
    }
  };
  for (const ResumeCopy::Block& block : copy.blocks) {
    copy_entries(c4_, geometry_.c4_ratio, block);
    copy_entries(c128_, geometry_.c128_ratio, block);
    for (int32_t q = std::max(std::max(first, 0), block.block * page_tokens);
         q < std::min(copy.position, (block.block + 1) * page_tokens);
         ++q) {
      swa(block.window, q) = point.window[at(q - first)];
      draft(block.window, q) = point.drafts[at(q - first)];
      const int32_t carry = q - (copy.position - geometry_.c4_ratio);
      if (carry >= 0) {
        ring4(block.window, q) = point.carry[at(carry)];
      }
    }
  }
  const int32_t group = copy.position / geometry_.c128_ratio * geometry_.c128_ratio;
  for (int32_t q = group; q < copy.position; ++q) {
    const OpenGroupBlock block = copy.open_blocks.at(at((q - group) / geometry_.open_group_rows));
    ring128(copy.slot, q) = open_[at(block.value() * geometry_.open_group_rows +
                                     (q - group) % geometry_.open_group_rows)];
  }
  if (copy.recompute_draft_row) {
    recompute_[at(copy.slot.value())] = {copy.position - 1, point.streams};
  }
}

void PayloadModel::read(const Row& row) {
  const auto end = static_cast<int32_t>(row.tags.size());
  for (int32_t q = std::max(0, row.begin - geometry_.window + 1); q < row.begin; ++q) {
    const Pages& pages = table(row.slot, q);
    expect("window", q, swa(pages.swa, q), row.tags[at(q)]);
    if (row.drafts && q >= row.draft_begin && q != row.draft_hole) {
      expect("draft", q, draft(pages.swa, q), draft_tag(row.tags[at(q)], row.ids[at(q + 1)]));
    }
  }
  const auto entries = [&](const char* what, const std::vector<Tag>& pool, int32_t ratio) {
    const int32_t rows = geometry_.page_tokens / ratio;
    for (int32_t w = 0; w < row.begin / ratio; ++w) {
      const int32_t q = (w + 1) * ratio - 1;
      expect(what, q, pool[at(table(row.slot, q).full.value() * rows + w % rows)], row.tags[at(q)]);
    }
  };
  entries("c4", c4_, geometry_.c4_ratio);
  entries("c128", c128_, geometry_.c128_ratio);
  const int32_t reach = StateRings::c4_reach(geometry_);
  for (int32_t close = row.begin / geometry_.c4_ratio * geometry_.c4_ratio + geometry_.c4_ratio;
       close <= end && close - reach < row.begin;
       close += geometry_.c4_ratio) {
    for (int32_t q = std::max(0, close - reach); q < row.begin; ++q) {
      expect("c4 ring", q, ring4(table(row.slot, q).swa, q), row.tags[at(q)]);
    }
  }
  const int32_t group = row.begin / geometry_.c128_ratio * geometry_.c128_ratio;
  if (group + geometry_.c128_ratio <= end) {
    for (int32_t q = group; q < row.begin; ++q) {
      expect("c128 ring", q, ring128(row.slot, q), row.tags[at(q)]);
    }
  }
}

void PayloadModel::write(const Row& row) {
  const auto end = static_cast<int32_t>(row.tags.size());
  for (int32_t q = row.begin; q < end; ++q) {
    const Pages& pages = table(row.slot, q);
    const TokenPos pos(q);
    const Tag tag = row.tags[at(q)];
    swa(pages.swa, q) = tag;
    draft(pages.swa, q) = row.drafts ? draft_tag(tag, row.ids[at(q + 1)]) : kPaint;
    c4_[at(c4_slot(pages.full, pos, geometry_).value())] = tag;
    c128_[at(c128_slot(pages.full, pos, geometry_).value())] = tag;
    if (keeps_c4_row(q, end, row.refusable, geometry_)) {
      ring4(pages.swa, q) = tag;
    }
    if (keeps_c128_row(q, end, row.refusable, geometry_)) {
      ring128(row.slot, q) = tag;
    }
  }
}

void PayloadModel::full_page_freed(FullPage page) {
  const auto paint = [&](std::vector<Tag>& pool, int32_t ratio) {
    const int32_t rows = geometry_.page_tokens / ratio;
    std::fill_n(pool.begin() + page.value() * rows, rows, kPaint);
  };
  paint(c4_, geometry_.c4_ratio);
  paint(c128_, geometry_.c128_ratio);
}

void PayloadModel::swa_page_freed(SwaPage page) {
  const auto paint = [&](std::vector<Tag>& pool, int32_t rows) {
    std::fill_n(pool.begin() + page.value() * rows, rows, kPaint);
  };
  paint(swa_, geometry_.page_tokens);
  paint(draft_, geometry_.page_tokens);
  paint(ring4_, rings_.c4_rows);
}

void PayloadModel::checkpoint_freed(CheckpointSlot slot) {
  Checkpoint& point = checkpoints_[at(slot.value())];
  point.window.assign(at(geometry_.window), kPaint);
  point.drafts = point.window;
  point.carry.assign(at(geometry_.c4_ratio), kPaint);
  point.streams = kPaint;
}

void PayloadModel::open_block_freed(OpenGroupBlock block) {
  std::fill_n(
      open_.begin() + block.value() * geometry_.open_group_rows, geometry_.open_group_rows, kPaint);
}

}  // namespace baleen::cache
