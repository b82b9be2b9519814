#include "runner/drafter.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace baleen::runner {
void DraftOptions::validate() const {
  if (max_drafts < 0 || max_drafts > kMostDrafts) {
    throw ConfigError("max_drafts must be in 0 .. " + std::to_string(kMostDrafts) + ", is " +
                      std::to_string(max_drafts));
  }
  if (simulate_accept_length != 0.0 &&
      !(simulate_accept_length >= 1.0 && simulate_accept_length <= max_drafts + 1.0)) {
    throw ConfigError("simulate_accept_length must be in 1 .. max_drafts + 1 = " +
                      std::to_string(max_drafts + 1) + ", is " +
                      std::to_string(simulate_accept_length));
  }
}

Drafter::Drafter(model::Model& model, const std::unique_ptr<DecodePath>& path, DraftOptions options)
    : options_((options.validate(), std::move(options))),
      sampler_(options_.sampling),
      layer_(model, path) {
  const model::ForwardConfig& forward = model.forward_config();
  if (options_.max_drafts > 0 &&
      (!forward.with_mtp || forward.max_rollback < options_.max_drafts)) {
    throw ConfigError("max_drafts = " + std::to_string(options_.max_drafts) +
                      ": the model must be opened with its MTP block and max_rollback >= "
                      "max_drafts; max_rollback is " +
                      std::to_string(forward.max_rollback));
  }
}

bool Drafter::extend_chain(const Guess& guess, std::span<const float> logits) {
  ExecutorSlot& slot = *guess.slot;
  const engine::BatchRow& row = *guess.row;
  const int64_t first = int64_t{row.first_position.value()} + 1;
  if (!sampler_.propose(*guess.sampling, first, logits, slot.counts, slot.chain)) {
    return false;
  }
  if (options_.replace) {
    int32_t& id = slot.chain.ids.back();
    id = options_.replace(row.slot, first + static_cast<int64_t>(slot.chain.ids.size()) - 1, id);
  }
  return true;
}

void Drafter::propose(std::span<const engine::BatchRow> rows,
                      std::span<const engine::SamplingRow> sampling,
                      const engine::AcceptedTokens& accepted,
                      std::span<ExecutorSlot> slots) {
  guesses_.clear();
  for (const engine::BatchRow& row : rows) {
    if (row.kind != engine::RowKind::kVerify) {
      continue;
    }
    ExecutorSlot& slot = slots[static_cast<size_t>(row.slot.value())];
    slot.chain.clear();
    const engine::SamplingRow& own = sampling[static_cast<size_t>(row.sampling_index)];
    const int32_t limit = accepted.limit(row, own) - 1;
    const Guess guess{&row, &own, &slot, std::min(row.num_drafts, limit)};
    if (guess.most > 0 && !slot.draft_logits.empty() && extend_chain(guess, slot.draft_logits)) {
      guesses_.push_back(guess);
    }
  }
  const std::vector<Guess> begun = guesses_;
  for (int32_t length = 1; !guesses_.empty(); ++length) {
    std::erase_if(guesses_, [&](const Guess& guess) { return guess.most == length; });
    inputs_.clear();
    for (const Guess& guess : guesses_) {
      inputs_.push_back({.sequence = guess.slot->sequence.data(),
                         .slot = guess.row->slot,
                         .next_ids = std::span(guess.slot->chain.ids).last(1),
                         .chained = true});
    }
    layer_.run(inputs_);
    size_t index = 0;
    std::erase_if(guesses_,
                  [&](const Guess& guess) { return !extend_chain(guess, layer_.logits(index++)); });
  }
  for (const Guess& guess : begun) {
    guess.slot->sequence[0].drop_draft_chain();
  }
}

void Drafter::follow(std::span<const engine::BatchRow> rows,
                     std::span<const engine::RowResult> results,
                     std::span<ExecutorSlot> slots) {
  inputs_.clear();
  std::vector<ExecutorSlot*> followed;
  for (size_t i = 0; i < rows.size(); ++i) {
    ExecutorSlot& slot = slots[static_cast<size_t>(rows[i].slot.value())];
    if (slot.drafts && !results[i].ids.empty()) {
      inputs_.push_back(
          {.sequence = slot.sequence.data(), .slot = rows[i].slot, .next_ids = results[i].ids});
      followed.push_back(&slot);
    }
  }
  layer_.run(inputs_);
  for (size_t i = 0; i < followed.size(); ++i) {
    const std::span<const float> logits = layer_.logits(i);
    followed[i]->draft_logits.assign(logits.begin(), logits.end());
  }
}

int32_t Drafter::simulated_drafts(ExecutorSlot& slot) const {
  if (options_.simulate_accept_length == 0.0) {
    return -1;
  }
  slot.simulated_debt += options_.simulate_accept_length - 1.0;
  const auto drafts = std::min(static_cast<int32_t>(slot.simulated_debt),
                               static_cast<int32_t>(slot.chain.ids.size()));
  // What a short chain could not give is not owed for ever.
  slot.simulated_debt = std::min(slot.simulated_debt - drafts, 1.0 * kMostDrafts);
  return drafts;
}

}  // namespace baleen::runner
