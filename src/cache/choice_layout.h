#pragma once
// What is recorded of a token's discrete choices: the experts of every layer that chooses them by
// score, and the entries that every ratio-4 layer's indexer picked. Both have a size that position
// and configuration alone decide, so records need no lengths. docs/contracts/choices.md.
//
//   ChoiceLayout layout = choice_layout(config);
//   layout.route_bytes();           // of one token
//   layout.pick_bytes(position);    // 0 while all visible entries are picked

#include <cstdint>
#include <vector>

#include "base/model_config.h"

namespace baleen::cache {

struct ChoiceLayout {
  // Main layers, ascending. Layers that route by token id are not among them: their experts are
  // those of the table.
  std::vector<int32_t> routed_layers;
  std::vector<int32_t> picking_layers;
  int32_t num_experts = 0;
  int32_t experts_per_token = 0;
  int32_t ratio = 0;  // tokens per entry of the picking layers; 0 without any
  int32_t topk = 0;   // entries that a query picks at most

  /// An expert id is one byte, or two (little endian) for more than 256 experts.
  int32_t expert_id_bytes() const { return num_experts <= 256 ? 1 : 2; }
  /// Routes of a token: routed layer by routed layer, experts ascending.
  int64_t route_bytes() const {
    return static_cast<int64_t>(routed_layers.size()) * experts_per_token * expert_id_bytes();
  }
  /// Entries that the query at `position` sees.
  int32_t visible_entries(int32_t position) const {
    return ratio == 0 ? 0 : (position + 1) / ratio;
  }
  /// Picks of the token at `position`: one coded set (pick_codec.h) per picking layer.
  int64_t pick_bytes(int32_t position) const;
  /// Picks of the tokens [first, end).
  int64_t pick_bytes(int32_t first, int32_t end) const;

  friend bool operator==(const ChoiceLayout&, const ChoiceLayout&) = default;
};

ChoiceLayout choice_layout(const ModelConfig& config);

}  // namespace baleen::cache
