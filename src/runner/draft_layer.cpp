#include "runner/draft_layer.h"

namespace baleen::runner {

void DraftLayer::run(std::span<const Row> rows) {
  by_path_ = path_ != nullptr && path_->runs_drafts();
  if (!by_path_) {
    inputs_.clear();
    for (const Row& row : rows) {
      inputs_.push_back(
          {.sequence = row.sequence, .next_ids = row.next_ids, .chained = row.chained});
    }
    model_.draft(inputs_, output_);
    if (!output_.mtp_logits_f64.empty()) {
      output_.mtp_logits.assign(output_.mtp_logits_f64.begin(), output_.mtp_logits_f64.end());
    }
    return;
  }
  if (rows.empty()) {
    return;
  }
  path_rows_.clear();
  for (const Row& row : rows) {
    const auto count = static_cast<int64_t>(row.next_ids.size());
    path_rows_.push_back(
        {.next_ids = row.next_ids,
         .slot = row.slot,
         .position = static_cast<int32_t>(row.sequence->draft_rows_end()),
         .chained = row.chained,
         .streams = row.chained ? nullptr : row.sequence->draft_streams(count),
         .hidden_before = static_cast<int32_t>(row.sequence->hidden_draft_rows_before()),
         .hidden_row = static_cast<int32_t>(row.sequence->hidden_draft_row())});
  }
  path_->draft(path_rows_);
  for (const Row& row : rows) {
    row.sequence->advance_draft_rows(static_cast<int64_t>(row.next_ids.size()));
  }
}

std::span<const float> DraftLayer::logits(std::size_t row) const {
  if (by_path_) {
    return path_->draft_logits(row);
  }
  const auto vocab = static_cast<std::size_t>(output_.vocab_size);
  return std::span<const float>(output_.mtp_logits).subspan(row * vocab, vocab);
}

}  // namespace baleen::runner
