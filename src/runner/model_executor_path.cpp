// How an executor gets its decode path, at start and again when weights or pools are others, and
// what it runs there.
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "base/check.h"
#include "base/log.h"
#include "ops/rope.h"
#include "runner/decode_check.h"
#include "runner/model_executor.h"

namespace baleen::runner {

std::unique_ptr<DecodePath> ModelExecutor::new_decode_path(const std::string& folder,
                                                           const model::Model& model) {
  if (!config_.decode_path || !pools_) {
    return nullptr;
  }
  const ModelConfig& config = model.config();
  const std::string& device = model.forward_config().device;
  const size_t colon = device.find(':');
  const DecodePathContext context{
      .config = config,
      .pools = *pools_,
      .folder = folder,
      .checkpoint = model.checkpoint(),
      .num_slots = config_.num_slots,
      .max_context = model.max_context(),
      .max_row_tokens = config_.drafts.max_drafts + 1,
      .max_step_tokens = config_.max_step_tokens,
      .device_index = colon == std::string::npos ? 0 : std::stoi(device.substr(colon + 1)),
      .invariant = model.numerics_name().ends_with("+invariant"),
      .record_choices = model.forward_config().record_choices,
      .plain_frequencies =
          ops::rope_frequencies(config.qk_rope_head_dim, config.rope_theta, std::nullopt),
      .compressed_frequencies =
          ops::rope_frequencies(config.qk_rope_head_dim, config.compress_rope_theta, config.yarn)};
  std::unique_ptr<DecodePath> path = config_.decode_path(context);
  for (const ExecutorSlot& slot : slots_) {
    for (size_t block = 0; block < slot.pages.full.size(); ++block) {
      path->change_page({.slot = slot.pages.slot,
                         .block = static_cast<int32_t>(block),
                         .full = slot.pages.full[block],
                         .swa = slot.pages.swa[block]});
    }
  }
  return path;
}

/// With pools that hold nothing yet: the check writes into their first pages.
void ModelExecutor::start_decode_path() {
  const auto begin = std::chrono::steady_clock::now();
  decode_path_ = new_decode_path(config_.weights_folder, model_);
  if (!decode_path_) {
    return;
  }
  const auto made = std::chrono::steady_clock::now();
  const double distance = check_decode_path(model_, *pools_, *decode_path_);
  const auto checked = std::chrono::steady_clock::now();
  log::info("runner",
            "decode path=\"{}\" context={} device_bytes={} distance_from_body={:.3f} make_s={:.2f} "
            "check_s={:.2f}",
            decode_path_->name(),
            decode_path_->max_context(),
            decode_path_->device_bytes(),
            distance,
            std::chrono::duration<double>(made - begin).count(),
            std::chrono::duration<double>(checked - made).count());
  if (config_.fill_device) {
    fill_device();
  }
}

/// Of which the step wants draws or logits and nothing else of the body.
bool ModelExecutor::takes_decode_path(const engine::BatchRow& row) const {
  if (decode_path_ == nullptr || (recorder_ && decode_path_->choices() == nullptr)) {
    return false;
  }
  int64_t tokens = row.num_tokens;
  if (row.kind == engine::RowKind::kVerify) {
    const ExecutorSlot& slot = slots_[static_cast<size_t>(row.slot.value())];
    tokens = static_cast<int64_t>(slot.chain.ids.size()) + 1;
  }
  const bool long_enough = row.kind == engine::RowKind::kPrefill
                               ? decode_path_->runs_prompts()
                               : tokens <= decode_path_->max_row_tokens();
  return long_enough && int64_t{row.first_position.value()} + tokens <= decode_path_->max_context();
}

/// A row's last part, with its results; parts of a prompt before it have run.
void ModelExecutor::add_decode_row(const engine::BatchRow& row,
                                   const engine::BatchPlan& plan,
                                   const engine::MaskProvider& masks) {
  DecodeRow& out = decode_rows_.emplace_back();
  const auto done =
      static_cast<int32_t>(slot_of(row.slot).num_tokens()) - row.first_position.value();
  out.ids = ids_of(row).subspan(static_cast<size_t>(done));
  out.slot = row.slot;
  out.position = row.first_position.value() + done;
  const bool scores = wants_prompt_scores(row);
  if (row.kind == engine::RowKind::kPrefill && !scores) {
    out.first_result = static_cast<int32_t>(out.ids.size()) - (row.sampling_index >= 0 ? 1 : 0);
  }
  if (row.sampling_index < 0 || scores) {
    return;
  }
  const engine::SamplingRow& sampling = plan.sampling[static_cast<size_t>(row.sampling_index)];
  // Simulated acceptance and draws by rejection look at more than the drawn tokens.
  const bool plain_draws =
      row.kind != engine::RowKind::kVerify || (config_.drafts.simulate_accept_length == 0.0 &&
                                               config_.drafts.sampling == DraftSampling::kCoupled);
  if (!plain_draws || !slot_of(row.slot).counts.empty() || has_penalties(sampling) ||
      !decode_path_->draws(sampling)) {
    return;
  }
  out.draw = &sampling;
  if (sampling.bitmask_row >= 0) {
    decode_masks_.resize(std::max(decode_masks_.size(), decode_rows_.size()));
    std::vector<uint32_t>& bits = decode_masks_[decode_rows_.size() - 1];
    bits.assign((static_cast<size_t>(model_.config().vocab_size) + 31) / 32, 0);
    masks(sampling.bitmask_row, bits);
    out.allowed_bits = bits;
  }
}

void ModelExecutor::follow_path(ExecutorSlot& slot, int64_t end, const uint8_t* streams) {
  if (slot.drafts) {
    slot.sequence.at(0).advance_in_pages(end - slot.num_tokens(), streams);
  } else {
    slot.decoded_to = end;
  }
}

/// The draft rows of a prompt's tokens up to `end` whose next token is known.
void ModelExecutor::add_prompt_drafts(const engine::BatchRow& row, int32_t end) {
  ExecutorSlot& slot = slot_of(row.slot);
  if (!slot.drafts) {
    return;
  }
  const std::span<const int32_t> ids = ids_of(row);
  const int32_t first = row.first_position.value();
  const size_t index = prompt_drafts_.size();
  prompt_next_ids_.resize(std::max(prompt_next_ids_.size(), index + 1));
  std::vector<int32_t>& next = prompt_next_ids_[index];
  next.clear();
  for (int64_t p = slot.sequence.at(0).draft_rows_end() + 1; p <= end; ++p) {
    if (p < first + row.num_tokens) {
      next.push_back(ids[static_cast<size_t>(p - first)]);
    } else if (row.next_id >= 0) {
      next.push_back(row.next_id);
    }
  }
  if (!next.empty()) {
    prompt_drafts_.push_back(
        {.sequence = slot.sequence.data(), .slot = row.slot, .next_ids = next});
  }
}

void ModelExecutor::run_prompt_drafts() {
  if (!prompt_drafts_.empty()) {
    drafter_.layer().run(prompt_drafts_);
    prompt_drafts_.clear();
  }
}

void ModelExecutor::run_prompt_part(size_t r, PromptPart part, const engine::BatchPlan& plan) {
  const engine::BatchRow& row = rows_[r];
  const auto count = static_cast<size_t>(part.end - part.begin);
  const bool scores = wants_prompt_scores(row);
  const DecodeRow tokens{.ids = ids_of(row).subspan(
                             static_cast<size_t>(part.begin - row.first_position.value()), count),
                         .slot = row.slot,
                         .position = part.begin,
                         .first_result = scores ? 0 : static_cast<int32_t>(count)};
  decode_path_->run({&tokens, 1});
  prompt_tokens_of_path_ += static_cast<int64_t>(count);
  if (recorder_) {
    engine::BatchRow run = row;
    run.first_position = TokenPos(part.begin);
    run.num_tokens = part.end - part.begin;
    run.choices_from = -1;  // the last part of the row reads these from the table
    recorder_->record(run, slot_of(row.slot).pages, *decode_path_->choices(), 0, result_.rows[r]);
  }
  if (scores) {
    score_prompt(
        row,
        plan,
        part,
        [&](int64_t index) { return decode_path_->logits(0, static_cast<size_t>(index)); },
        result_.rows[r]);
  }
  follow_path(slot_of(row.slot), part.end, decode_path_->streams(0));
  add_prompt_drafts(row, part.end);
  run_prompt_drafts();
}

/// Parts of a prompt before its last: up to each position that is captured inside the row, as later
/// tokens overwrite the rings, and few tokens at a time where all of them get log-probs.
void ModelExecutor::run_prompt_begin(size_t r, const engine::BatchPlan& plan) {
  const engine::BatchRow& row = rows_[r];
  int32_t begin = row.first_position.value();
  const int32_t end = begin + row.num_tokens;
  const bool scores = wants_prompt_scores(row);
  while (true) {
    int32_t cut = end;
    for (size_t i = 0; i < plan.captures.size(); ++i) {
      const cache::CaptureJob& job = plan.captures[i];
      if (job.slot == row.slot && job.position > begin) {
        cut = std::min(cut, job.position);
      }
    }
    if (scores) {  // one token stays: results of several rows share a run
      cut = std::min({cut, begin + kMostRowResults, std::max(end - 1, begin + 1)});
    }
    if (cut >= end) {
      return;
    }
    run_prompt_part(r, {begin, cut}, plan);
    begin = cut;
    for (size_t i = 0; i < plan.captures.size(); ++i) {
      if (plan.captures[i].slot == row.slot && plan.captures[i].position == cut) {
        capture(plan.captures[i]);
        captured_[i] = true;
      }
    }
  }
}

void ModelExecutor::run_decode_path() {
  decode_path_->run(decode_rows_);
  size_t index = 0;
  for (size_t r = 0; r < rows_.size(); ++r) {
    if (!places_[r].by_path) {
      continue;
    }
    const DecodeRow& row = decode_rows_[index];
    const auto count = static_cast<int32_t>(row.ids.size());
    follow_path(slot_of(row.slot), int64_t{row.position} + count, decode_path_->streams(index));
    if (rows_[r].kind == engine::RowKind::kPrefill) {
      prompt_tokens_of_path_ += count;
      add_prompt_drafts(rows_[r], row.position + count);
    } else {
      ++rows_of_decode_path_;
    }
    ++index;
  }
  run_prompt_drafts();
}

}  // namespace baleen::runner
