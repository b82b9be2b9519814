#pragma once
// Recorded choices as plain arrays of numbers, the form in which other programs know them: experts
// of every layer, also of those that choose them by token id, and picked entries padded to the same
// count. Pure functions; docs/contracts/choices.md.
//
//   std::vector<int32_t> experts = expert_array(layout, records, token_routes.get(), ids);
//   std::vector<int32_t> picks = pick_array(layout, records);

#include <cstdint>
#include <span>
#include <vector>

#include "cache/choice_layout.h"
#include "cache/choice_records.h"

namespace baleen::cache {

/// Experts of the layers that choose them by token id.
struct TokenRoutes {
  std::vector<int32_t> layers;  // main layers, ascending
  int64_t vocab_size = 0;       // tokens
  int32_t experts_per_token = 0;
  std::vector<int32_t> experts;  // i32 [layers, vocab_size, experts_per_token], ascending per token

  /// `layer` counts `layers`.
  std::span<const int32_t> of(std::size_t layer, int32_t id) const;
};

/// i32 [records.count, layers, experts_per_token]: all main layers in order, experts ascending.
/// `ids`: the tokens of the records' positions. `by_token` may be null where no layer chooses by
/// token id. Throws Error when `records.routes` does not fit the layout; a layer that neither of
/// the two knows is a programmer error.
std::vector<int32_t> expert_array(const ChoiceLayout& layout,
                                  const ChoiceRecords& records,
                                  const TokenRoutes* by_token,
                                  std::span<const int32_t> ids);

/// i32 [records.count, picking layers, topk]: entries ascending, then -1. Throws Error when
/// `records.picks` does not fit the layout.
std::vector<int32_t> pick_array(const ChoiceLayout& layout, const ChoiceRecords& records);

}  // namespace baleen::cache
