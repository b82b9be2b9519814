#include "runner/model_executor.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "kernels/sampling/sampling.h"

namespace baleen::runner {
void RunnerConfig::validate() const {
  if (num_slots < 1) {
    throw ConfigError("num_slots must be at least 1, is " + std::to_string(num_slots));
  }
  if (max_step_tokens < num_slots) {
    throw ConfigError("max_step_tokens must be at least num_slots (" + std::to_string(num_slots) +
                      "), is " + std::to_string(max_step_tokens));
  }
  drafts.validate();
}

ModelExecutor::ModelExecutor(model::Model model, const RunnerConfig& config, std::string model_name)
    : model_(std::move(model)),
      config_((config.validate(), config)),
      model_name_(std::move(model_name)),
      drafter_(model_, decode_path_, config_.drafts) {
  if (config_.cache_bytes > 0) {
    cache_sizes_ = check_sizes_ = sizes_for(bytes_of_check());
    make_pools(check_sizes_);
    if (config_.paint_pages) {
      painter_.emplace([this](cache::Pool pool, int32_t page) {
        if (pool == cache::Pool::kC4) {
          pools_->paint_full_page(cache::FullPage(page));
        } else if (pool == cache::Pool::kSwa) {
          pools_->paint_swa_page(cache::SwaPage(page));
        }
      });
    }
  }
  slots_.resize(static_cast<size_t>(config_.num_slots));
  inputs_.reserve(slots_.size());
  places_.reserve(slots_.size());
  decode_rows_.reserve(slots_.size());
  decode_masks_.reserve(slots_.size());  // rows of the path point into the masks
  if (config_.decode_path && !pools_) {
    throw ConfigError("decode_path wants a shared cache: cache_bytes is 0");
  }
  start_decode_path();
  if (model_.forward_config().record_choices) {
    recorder_.emplace(model_.choice_layout(), cache_sizes_.full_pages);
    find_token_routes();
  }
}

engine::ExecutorCapacity ModelExecutor::capacity() const {
  engine::ExecutorCapacity out;
  out.num_slots = config_.num_slots;
  out.max_context = model_.max_context();
  out.max_step_tokens = config_.max_step_tokens;
  out.vocab_size = model_.config().vocab_size;
  out.max_accepted = config_.drafts.max_drafts + 1;
  out.max_drafts = config_.drafts.max_drafts;
  if (recorder_) {
    out.choices = model_.choice_layout();
  }
  if (pools_) {
    cache::SequenceCacheOptions& options = out.cache.emplace();
    options.geometry = cache::cache_geometry(pools_->shape());
    options.sizes.full_pages = static_cast<int32_t>(cache_sizes_.full_pages);
    options.sizes.swa_pages = static_cast<int32_t>(cache_sizes_.swa_pages);
    options.sizes.checkpoint_slots = static_cast<int32_t>(cache_sizes_.checkpoint_slots);
    options.sizes.open_group_blocks = static_cast<int32_t>(cache_sizes_.open_group_blocks);
    options.rings.c4_rows = static_cast<int32_t>(cache_sizes_.c4_ring_rows);
    options.rings.c128_rows = static_cast<int32_t>(cache_sizes_.c128_ring_rows);
    options.request_slots = config_.num_slots;
    options.verified_tokens = config_.drafts.max_drafts + 1;
  }
  return out;
}

engine::ExecutorInfo ModelExecutor::info() const {
  engine::ExecutorInfo out;
  out.model_name = model_name_;
  out.numerics = model_.numerics_name();
  if (decode_path_) {
    out.numerics += "; " + decode_path_->name();  // a field of CSV rows: no comma
  }
  if (const double length = config_.drafts.simulate_accept_length; length > 0.0) {
    out.numerics += ", SIMULATED ACCEPTANCE of " + std::to_string(length) +
                    " tokens per step: answers are wrong";
  }
  out.weight_bytes = model_.weight_bytes();
  out.state_bytes_per_token = static_cast<int64_t>(model_.state_bytes_per_token());
  out.contract = model_.contract();
  return out;
}

int64_t ModelExecutor::state_bytes() const {
  int64_t total = 0;
  for (const ExecutorSlot& slot : slots_) {
    total += slot.sequence.empty() ? 0 : slot.sequence[0].bytes();
  }
  return total;
}

void ModelExecutor::reset(const engine::SlotReset& reset) {
  ExecutorSlot& slot = slot_of(reset.slot);
  slot.pages.slot = reset.slot;
  if (slot.sequence.empty()) {
    slot.sequence.push_back(pools_ ? model_.new_sequence(*pools_, slot.pages)
                                   : model_.new_sequence());
  }
  BALEEN_CHECK(pools_ || reset.first_position == 0,
               "slot {} begins at {} without a cache",
               reset.slot.value(),
               reset.first_position);
  slot.sequence[0].begin_at(reset.first_position);
  slot.decoded_to = -1;
  slot.ran_on_path = false;
  slot.counts.clear();
  if (!reset.generated.empty()) {
    slot.counts.assign(static_cast<size_t>(model_.config().vocab_size), 0);
    for (const int32_t id : reset.generated) {
      ++slot.counts[static_cast<size_t>(id)];
    }
  }
  slot.last_logits.clear();
  slot.drafts = reset.drafts && config_.drafts.max_drafts > 0;
  slot.draft_logits.clear();
  slot.chain.clear();
  slot.simulated_debt = 0.0;
}

void ModelExecutor::resume(const cache::ResumeCopy& copy) {
  mover_->resume(copy);
  if (recorder_) {
    recorder_->resume(copy);
  }
  ExecutorSlot& slot = slot_of(copy.slot);
  if (copy.recompute_draft_row && slot.drafts) {
    slot.sequence.at(0).begin_at(copy.position, mover_->streams(copy.source));
  }
}

/// The streams of the last position before a resume point, where the draft layer may want them.
void ModelExecutor::keep_streams(const cache::CaptureJob& job) {
  const ExecutorSlot& slot = slot_of(job.slot);
  if (job.with_streams && slot.drafts) {
    slot.sequence.at(0).copy_streams(job.position - 1, mover_->streams(job.target));
  }
}

void ModelExecutor::change_page(const cache::PageChange& change) {
  cache::SequencePages& pages = slot_of(change.slot).pages;
  const auto block = static_cast<size_t>(change.block);
  if (pages.full.size() <= block) {
    pages.full.resize(block + 1, cache::FullPage(0));
    pages.swa.resize(block + 1, cache::SwaPage(0));
  }
  pages.full[block] = change.full;
  pages.swa[block] = change.swa;
  if (decode_path_) {
    decode_path_->change_page(change);
  }
}

void ModelExecutor::capture(const cache::CaptureJob& job) {
  if (slot_of(job.slot).ran_on_path) {
    // A few tokens behind the point at most: the rings still hold all rows that the job wants.
    cache::CaptureJob from_rings = job;
    from_rings.in_pass = false;
    mover_->capture(from_rings, nullptr);
    keep_streams(job);
    return;
  }
  const model::Sequence& sequence = slot_of(job.slot).sequence.at(0);
  const cache::PassRows pass{
      .attention = [&](int64_t layer,
                       int64_t position) { return sequence.ring_row(false, layer, position); },
      .index = [&](int64_t layer,
                   int64_t position) { return sequence.ring_row(true, layer, position); }};
  mover_->capture(job, &pass);
  keep_streams(job);
}

std::span<const int32_t> ModelExecutor::ids_of(const engine::BatchRow& row) {
  const std::span<const int32_t> planned = std::span<const int32_t>(ids_).subspan(
      static_cast<size_t>(row.ids_offset), static_cast<size_t>(row.num_tokens - row.num_drafts));
  if (row.kind != engine::RowKind::kVerify) {
    return planned;
  }
  const std::vector<int32_t>& drafts = slot_of(row.slot).chain.ids;
  const size_t begin = verified_ids_.size();
  verified_ids_.push_back(planned[0]);
  verified_ids_.insert(verified_ids_.end(), drafts.begin(), drafts.end());
  return std::span<const int32_t>(verified_ids_).subspan(begin, drafts.size() + 1);
}

void ModelExecutor::run_rows(const engine::BatchPlan& plan, const engine::MaskProvider& masks) {
  ids_.clear();
  for (const int32_t id : plan.ids) {
    ids_.push_back(accepted_.resolve(id));
  }
  places_.clear();
  decode_rows_.clear();
  inputs_.clear();
  verified_ids_.clear();
  verified_ids_.reserve(rows_.size() * (kMostDrafts + 1));  // inputs point into it
  captured_.assign(plan.captures.size(), false);
  for (size_t r = 0; r < rows_.size(); ++r) {
    const engine::BatchRow& row = rows_[r];
    ExecutorSlot& slot = slot_of(row.slot);
    BALEEN_CHECK(slot.num_tokens() == row.first_position.value(),
                 "row at {} of a slot with {} tokens",
                 row.first_position.value(),
                 slot.num_tokens());
    if (takes_decode_path(row)) {
      places_.push_back({.by_path = true, .index = decode_rows_.size()});
      slot.ran_on_path = true;
      if (row.kind == engine::RowKind::kPrefill) {
        run_prompt_begin(r, plan);
      }
      add_decode_row(row, plan, masks);
    } else {
      places_.push_back({.by_path = false, .index = inputs_.size()});
      slot.catch_up();
      slot.ran_on_path = false;
      add_input(row, slot);
    }
  }
  if (!inputs_.empty() || decode_rows_.empty()) {
    model_.forward(inputs_, output_);
    if (model_.forward_config().compute == model::ComputeType::kFloat64) {
      output_.logits.assign(output_.logits_f64.begin(), output_.logits_f64.end());
    }
  }
  if (!decode_rows_.empty()) {
    run_decode_path();
  }
}

void ModelExecutor::add_input(const engine::BatchRow& row, ExecutorSlot& slot) {
  model::RowInput& input = inputs_.emplace_back();
  input.sequence = slot.sequence.data();
  input.first_position = row.first_position.value();
  input.ids = ids_of(row);
  input.logits = wants_prompt_scores(row) || row.kind == engine::RowKind::kVerify
                     ? model::LogitsWanted::kAll
                 : row.sampling_index >= 0 ? model::LogitsWanted::kLast
                                           : model::LogitsWanted::kNone;
  input.next_id = row.next_id;
  // Of a prompt all tokens stand; which of the others do is known after the draw.
  input.mtp = !slot.drafts                            ? model::MtpRows::kNone
              : row.kind == engine::RowKind::kPrefill ? model::MtpRows::kComplete
                                                      : model::MtpRows::kKeepStreams;
}

std::span<const float> ModelExecutor::logits_of(size_t place, int64_t index) const {
  const RowPlace& at = places_[place];
  if (at.by_path) {
    const DecodeRow& row = decode_rows_[at.index];
    return decode_path_->logits(at.index,
                                index < 0
                                    ? row.ids.size() - 1 - static_cast<size_t>(row.first_result)
                                    : static_cast<size_t>(index));
  }
  const model::LogitsSpan& span = output_.spans[at.index];
  return output_.row(span.begin + (index < 0 ? span.count - 1 : index));
}

void ModelExecutor::score_prompt(const engine::BatchRow& row,
                                 const engine::BatchPlan& plan,
                                 PromptPart part,
                                 const std::function<std::span<const float>(int64_t)>& logits,
                                 engine::RowResult& result) {
  ExecutorSlot& slot = slot_of(row.slot);
  for (int32_t p = std::max({1, row.input_logprobs_from, part.begin}); p < part.end; ++p) {
    const int32_t id =
        plan.ids[static_cast<size_t>(row.ids_offset + p - row.first_position.value())];
    const std::span<const float> before =
        p == part.begin ? std::span<const float>(slot.last_logits) : logits(p - part.begin - 1);
    result.input_logprobs.push_back({id, kernels::plain_logprob(before, id)});
  }
  const std::span<const float> last = logits(part.end - part.begin - 1);
  slot.last_logits.assign(last.begin(), last.end());
}

void ModelExecutor::draw(const engine::BatchRow& row,
                         const engine::SamplingRow& sampling,
                         size_t place,
                         const engine::MaskProvider& masks,
                         engine::RowResult& result) {
  ExecutorSlot& slot = slot_of(row.slot);
  static const DraftChain kNoDrafts;
  const bool verifies = row.kind == engine::RowKind::kVerify;
  const DraftChain& chain = verifies ? slot.chain : kNoDrafts;
  result.num_drafted = static_cast<int32_t>(chain.ids.size());
  const RowPlace& at = places_[place];
  if (at.by_path && decode_rows_[at.index].draw != nullptr) {
    take_drawn(at.index, sampling, chain, result);
    finish_row(row, result);
    return;
  }
  ChainLogits target;
  // A verify row has logits behind each of its tokens, any other behind its last.
  target.row = [&](int32_t index) { return logits_of(place, verifies ? index : -1); };
  target.first_position = int64_t{row.first_position.value()} + row.num_tokens - row.num_drafts;
  if (sampling.bitmask_row >= 0) {
    BALEEN_CHECK(!verifies, "a row with a mask draws one token");
    mask_bits_.assign((static_cast<size_t>(model_.config().vocab_size) + 31) / 32, 0);
    masks(sampling.bitmask_row, mask_bits_);
    target.allowed_bits = mask_bits_;
  }
  if (verifies) {
    target.simulated_drafts = drafter_.simulated_drafts(slot);
  }
  drafter_.sampler().accept(target, sampling, chain, slot.counts, result);
  finish_row(row, result);
}

/// Of a verify row, tokens behind those that stand are taken back.
void ModelExecutor::finish_row(const engine::BatchRow& row, engine::RowResult& result) {
  if (row.kind == engine::RowKind::kVerify) {
    // A row without a token ends its request; one that was planned behind it finds its place.
    ExecutorSlot& slot = slot_of(row.slot);
    const int64_t stands = int64_t{row.first_position.value()} +
                           std::max<int64_t>(static_cast<int64_t>(result.ids.size()), 1);
    if (slot.decoded_to >= 0) {
      slot.decoded_to = stands;
    } else {
      slot.sequence[0].rollback(stands);
    }
  }
}

void ModelExecutor::take_drawn(size_t row,
                               const engine::SamplingRow& sampling,
                               const DraftChain& chain,
                               engine::RowResult& result) const {
  const size_t most =
      std::min(chain.ids.size() + 1, static_cast<size_t>(std::max(sampling.accept_limit, 1)));
  for (size_t i = 0; i < most; ++i) {
    const DrawnToken drawn = decode_path_->drawn(row, i);
    if (drawn.token.status != kernels::SamplingStatus::kDrawn) {
      result.nan_logits = i == 0;
      return;
    }
    add_token(drawn.token, drawn.top, sampling, result);
    if (i < chain.ids.size() && drawn.token.id != chain.ids[i]) {
      return;
    }
  }
}

engine::Ticket ModelExecutor::submit(const engine::BatchPlan& plan,
                                     const engine::MaskProvider& masks) {
  BALEEN_CHECK(!in_flight_, "step {} is unfinished", result_.step);
  for (const cache::CaptureJob& job : plan.end_captures) {
    mover_->capture(job, nullptr);
    keep_streams(job);
  }
  for (const cache::PageChange& change : plan.pages) {
    change_page(change);
  }
  for (const engine::SlotReset& slot_reset : plan.resets) {
    reset(slot_reset);
  }
  for (const cache::ResumeCopy& copy : plan.copies) {
    resume(copy);
  }
  rows_.clear();
  for (const engine::BatchRow& row : plan.rows) {
    rows_.push_back(accepted_.placed(row));
  }
  for (const engine::BatchRow& row : rows_) {
    if (ExecutorSlot& slot = slot_of(row.slot); slot.drafts) {
      slot.sequence.at(0).hide_draft_rows(row.draft_begin, row.draft_hole);
    }
  }
  drafter_.propose(rows_, plan.sampling, accepted_, slots_);
  result_.step = plan.step;
  result_.rows.clear();
  result_.rows.resize(rows_.size());
  run_rows(plan, masks);
  for (size_t i = 0; i < plan.captures.size(); ++i) {
    if (!captured_[i]) {
      capture(plan.captures[i]);
    }
  }
  size_t first_of_body = 0;  // the next row's first token, among those that ran there
  size_t first_of_path = 0;
  for (size_t i = 0; i < rows_.size(); ++i) {
    const engine::BatchRow& row = rows_[i];
    if (recorder_) {
      const RowPlace& at = places_[i];
      const size_t num_run =
          at.by_path ? decode_rows_[at.index].ids.size() : inputs_[at.index].ids.size();
      engine::BatchRow run = row;  // fewer tokens than planned where drafts were fewer
      run.num_tokens = static_cast<int32_t>(num_run);
      if (at.by_path) {  // a prompt's parts before this one are recorded
        run.first_position = TokenPos(decode_rows_[at.index].position);
        run.choices_from = std::min(row.choices_from, row.first_position.value());
      }
      size_t& next = at.by_path ? first_of_path : first_of_body;
      recorder_->record(run,
                        slot_of(row.slot).pages,
                        at.by_path ? *decode_path_->choices() : output_.choices,
                        next,
                        result_.rows[i]);
      next += num_run;
    }
    if (wants_prompt_scores(row)) {
      const int32_t end = row.first_position.value() + row.num_tokens;
      const auto& at = places_[i];
      const PromptPart part{
          at.by_path ? decode_rows_[at.index].position : row.first_position.value(), end};
      score_prompt(
          row, plan, part, [&](int64_t index) { return logits_of(i, index); }, result_.rows[i]);
    }
    if (row.sampling_index >= 0) {
      draw(row, plan.sampling[static_cast<size_t>(row.sampling_index)], i, masks, result_.rows[i]);
    }
  }
  drafter_.follow(rows_, result_.rows, slots_);
  accepted_.keep(result_);
  in_flight_ = true;
  ticket_ = engine::Ticket(ticket_.value() + 1);
  return ticket_;
}

engine::StepResult ModelExecutor::wait(engine::Ticket ticket) {
  BALEEN_CHECK(in_flight_ && ticket == ticket_, "ticket {} is not in flight", ticket.value());
  in_flight_ = false;
  return std::move(result_);
}

}  // namespace baleen::runner
