#include "runner/choice_recorder.h"

#include <algorithm>
#include <span>

namespace baleen::runner {
namespace {

cache::FullPage page_of(const cache::SequencePages& pages, int32_t position) {
  return pages.full.at(static_cast<size_t>(position / cache::kPageTokens));
}

void append(std::vector<uint8_t>& to, std::span<const uint8_t> from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

ChoiceRecorder::ChoiceRecorder(const cache::ChoiceLayout& layout, int64_t num_full_pages) {
  if (num_full_pages > 0) {
    table_.emplace(layout, num_full_pages);
  }
}

void ChoiceRecorder::resume(const cache::ResumeCopy& copy) {
  for (const cache::ResumeCopy::Block& block : copy.blocks) {
    const auto tokens =
        std::min<int64_t>(copy.position - block.block * cache::kPageTokens, cache::kPageTokens);
    if (table_ && block.source != block.target && tokens > 0) {
      table_->copy(block.block, block.source, block.target, static_cast<int32_t>(tokens));
    }
  }
}

void ChoiceRecorder::keep(const cache::SequencePages& pages,
                          int32_t first_position,
                          int32_t count,
                          const model::ForwardChoices& choices,
                          std::size_t first_token) {
  for (int32_t i = 0; table_ && i < count; ++i) {
    const std::size_t token = first_token + static_cast<std::size_t>(i);
    table_->write(page_of(pages, first_position + i),
                  first_position + i,
                  choices.routes_of(token),
                  choices.picks_of(token));
  }
}

void ChoiceRecorder::record(const engine::BatchRow& row,
                            const cache::SequencePages& pages,
                            const model::ForwardChoices& choices,
                            std::size_t first_token,
                            engine::RowResult& result) {
  const int32_t first = row.first_position.value();
  keep(pages, first, row.num_tokens, choices, first_token);
  if (row.choices_from < 0) {
    return;
  }
  cache::ChoiceRecords& out = result.choices;
  out.first_position = table_ ? std::min(row.choices_from, first) : first;
  for (int32_t position = out.first_position; position < first; ++position) {
    table_->read(page_of(pages, position), position, out.routes, out.picks);
  }
  for (int32_t i = 0; i < row.num_tokens; ++i) {
    const std::size_t token = first_token + static_cast<std::size_t>(i);
    append(out.routes, choices.routes_of(token));
    append(out.picks, choices.picks_of(token));
  }
  out.count = first + row.num_tokens - out.first_position;
}

}  // namespace baleen::runner
