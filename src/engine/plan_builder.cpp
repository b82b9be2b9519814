#include "engine/plan_builder.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/check.h"

namespace baleen::engine {

PlanBuilder::PlanBuilder(const SchedulerConfig& config, int64_t vocab_size)
    : mask_words_(static_cast<size_t>((vocab_size + 31) / 32)) {
  const auto num_slots = static_cast<size_t>(config.num_slots);
  plan_.rows.reserve(num_slots);
  plan_.ids.reserve(static_cast<size_t>(config.max_step_tokens));
  plan_.resets.reserve(num_slots);
  plan_.sampling.reserve(num_slots);
  spare_.reserve(num_slots);
}

void PlanBuilder::begin(int64_t step) {
  plan_.step = step;
  plan_.rows.clear();
  plan_.ids.clear();
  plan_.resets.clear();
  plan_.end_captures.clear();
  plan_.pages.clear();
  plan_.copies.clear();
  plan_.captures.clear();
  masks_.clear();
  num_sampling_ = 0;
}

SamplingRow& PlanBuilder::add_sampling() {
  if (num_sampling_ == plan_.sampling.size()) {
    if (spare_.empty()) {
      plan_.sampling.emplace_back();
    } else {
      plan_.sampling.push_back(std::move(spare_.back()));
      spare_.pop_back();
    }
  }
  return plan_.sampling[num_sampling_++];
}

void PlanBuilder::add(const ScheduledRow& row, const Generation& generation, bool drafts) {
  BatchRow& out = plan_.rows.emplace_back();
  out.slot = row.slot;
  out.kind = row.kind;
  out.first_position = TokenPos(row.first_position);
  out.num_tokens = row.num_tokens;
  out.ids_offset = static_cast<int32_t>(plan_.ids.size());
  out.follows = row.follows;
  const int32_t num_unknown = row.follows >= 0 ? 1 : 0;  // tokens before the one that is drawn
  if (row.follows >= 0) {
    plan_.ids.push_back(-1 - row.follows);
  }
  out.num_drafts = row.num_drafts;
  out.draft_begin = row.draft_begin;
  out.draft_hole = row.draft_hole;
  const auto begin = generation.tokens().begin() + row.first_position;
  const auto end = begin + (row.num_tokens - row.num_drafts - num_unknown);
  plan_.ids.insert(plan_.ids.end(), begin, end);
  if (drafts && row.kind == RowKind::kPrefill && end != generation.tokens().end()) {
    out.next_id = *end;
  }
  if (row.begins) {
    SlotReset& reset = plan_.resets.emplace_back();
    reset.slot = row.slot;
    reset.first_position = row.first_position;
    reset.drafts = drafts;
    const auto prompt_end = generation.tokens().begin() + generation.num_prompt_tokens();
    reset.generated.assign(prompt_end, generation.tokens().end());
  }
  if (row.kind == RowKind::kPrefill && generation.wants_prompt_logprobs()) {
    out.input_logprobs_from = 0;
  }
  out.choices_from = generation.choices_from();
  if (generation.draws_tokens() && row.draws()) {
    out.sampling_index = static_cast<int32_t>(num_sampling_);
    SamplingRow& sampling = add_sampling();
    generation.fill_sampling(sampling, num_unknown);
    if (generation.wants_mask()) {
      sampling.bitmask_row = static_cast<int32_t>(masks_.size() / mask_words_);
      masks_.resize(masks_.size() + mask_words_);
      generation.fill_mask(std::span(masks_).last(mask_words_));
    }
  }
}

MaskProvider PlanBuilder::masks() const {
  return [this](int32_t bitmask_row, std::span<uint32_t> bits) {
    const auto begin = static_cast<size_t>(bitmask_row) * mask_words_;
    BALEEN_CHECK(begin + mask_words_ <= masks_.size() && bits.size() >= mask_words_,
                 "mask={} words={}",
                 bitmask_row,
                 bits.size());
    std::copy_n(masks_.begin() + static_cast<std::ptrdiff_t>(begin), mask_words_, bits.begin());
  };
}

void PlanBuilder::add_cache_work(CacheWork& work) {
  while (plan_.sampling.size() > num_sampling_) {
    spare_.push_back(std::move(plan_.sampling.back()));
    plan_.sampling.pop_back();
  }
  std::swap(plan_.end_captures, work.end_captures);
  std::swap(plan_.pages, work.pages);
  std::swap(plan_.copies, work.copies);
  std::swap(plan_.captures, work.captures);
}

}  // namespace baleen::engine
