#include "engine/scripted_pages.h"

#include <algorithm>

namespace baleen::engine {

ScriptedPages::ScriptedPages(const cache::SequenceCacheOptions& options)
    : page_tokens_(options.geometry.page_tokens),
      ids_((static_cast<size_t>(options.sizes.full_pages) + 1) * static_cast<size_t>(page_tokens_),
           -1),
      tables_(static_cast<size_t>(options.request_slots)) {}

void ScriptedPages::change(const cache::PageChange& change) {
  std::vector<cache::FullPage>& table = tables_.at(static_cast<size_t>(change.slot.value()));
  const auto block = static_cast<size_t>(change.block);
  if (table.size() <= block) {
    table.resize(block + 1, cache::FullPage(0));
  }
  table[block] = change.full;
}

void ScriptedPages::resume(const cache::ResumeCopy& copy) {
  for (const cache::ResumeCopy::Block& block : copy.blocks) {
    const int32_t count = std::min(copy.position - block.block * page_tokens_, page_tokens_);
    const auto begin = ids_.begin() + std::ptrdiff_t{block.source.value()} * page_tokens_;
    std::copy_n(begin, count, ids_.begin() + std::ptrdiff_t{block.target.value()} * page_tokens_);
  }
}

void ScriptedPages::write(RequestSlot slot, int32_t position, int32_t id) {
  const std::vector<cache::FullPage>& table = tables_.at(static_cast<size_t>(slot.value()));
  const auto block = static_cast<size_t>(position / page_tokens_);
  if (block < table.size()) {
    ids_.at(static_cast<size_t>(table[block].value() * page_tokens_ + position % page_tokens_)) =
        id;
  }
}

std::vector<int32_t> ScriptedPages::prefix(RequestSlot slot, int32_t num_tokens) const {
  const std::vector<cache::FullPage>& table = tables_.at(static_cast<size_t>(slot.value()));
  std::vector<int32_t> ids;
  ids.reserve(static_cast<size_t>(num_tokens));
  for (int32_t position = 0; position < num_tokens; ++position) {
    const cache::FullPage page = table.at(static_cast<size_t>(position / page_tokens_));
    ids.push_back(
        ids_.at(static_cast<size_t>(page.value() * page_tokens_ + position % page_tokens_)));
  }
  return ids;
}

}  // namespace baleen::engine
