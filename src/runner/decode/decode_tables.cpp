#include "runner/decode/decode_tables.h"

#include <algorithm>

#include "base/check.h"

namespace baleen::runner {

DecodeTables::DecodeTables(const Memory& memory, int32_t blocks)
    : memory_(memory), blocks_(blocks) {
  const auto width = static_cast<std::size_t>(blocks);
  BALEEN_CHECK(blocks > 0 && memory.full.size() % width == 0 &&
                   memory.window.size() == memory.full.size() && memory.rows.size() % width == 0,
               "blocks={} full={} window={} rows={}",
               blocks,
               memory.full.size(),
               memory.window.size(),
               memory.rows.size());
  slots_.resize(memory.full.size() / width);
  rows_.resize(memory.rows.size() / width);
}

void DecodeTables::note(Table table, int64_t begin, int64_t count) {
  // The latest stretch of the same table grows; prompts change block after block.
  for (auto copy = pending_.rbegin(); copy != pending_.rend(); ++copy) {
    if (copy->table != table) {
      continue;
    }
    if (begin >= copy->begin && begin <= copy->begin + copy->count) {
      copy->count = std::max(copy->count, begin + count - copy->begin);
      return;
    }
    break;
  }
  pending_.push_back({table, begin, count});
}

void DecodeTables::change(RequestSlot slot,
                          int32_t block,
                          cache::FullPage full,
                          cache::SwaPage window) {
  BALEEN_CHECK(block >= 0 && block < blocks_, "block={} blocks={}", block, blocks_);
  Slot& state = slots_.at(static_cast<std::size_t>(slot.value()));
  const int64_t at = slot.value() * blocks_ + block;
  const auto index = static_cast<std::size_t>(at);
  if (memory_.full[index] != full.value()) {
    memory_.full[index] = full.value();
    ++state.version;
    note(Table::kFull, at, 1);
  }
  if (memory_.window[index] != window.value()) {
    memory_.window[index] = window.value();
    note(Table::kWindow, at, 1);
  }
  state.used = std::max(state.used, block + 1);
}

void DecodeTables::set_rows(std::span<const RequestSlot> slots) {
  BALEEN_CHECK(slots.size() <= rows_.size(), "rows={} of {}", slots.size(), rows_.size());
  for (std::size_t r = 0; r < slots.size(); ++r) {
    const Slot& state = slots_.at(static_cast<std::size_t>(slots[r].value()));
    Row& row = rows_[r];
    if (row.slot == slots[r] && row.version == state.version) {
      continue;
    }
    row = {slots[r], state.version};
    const int64_t target = static_cast<int64_t>(r) * blocks_;
    std::copy_n(memory_.full.begin() + slots[r].value() * blocks_,
                state.used,
                memory_.rows.begin() + target);
    if (state.used > 0) {
      note(Table::kRows, target, state.used);
    }
  }
}

}  // namespace baleen::runner
