#include "cache/choice_layout.h"

#include "cache/pick_codec.h"

namespace baleen::cache {

int64_t ChoiceLayout::pick_bytes(int32_t position) const {
  return static_cast<int64_t>(picking_layers.size()) *
         coded_picks_bytes(visible_entries(position), topk);
}

int64_t ChoiceLayout::pick_bytes(int32_t first, int32_t end) const {
  int64_t total = 0;
  for (int32_t position = first; position < end; ++position) {
    total += pick_bytes(position);
  }
  return total;
}

ChoiceLayout choice_layout(const ModelConfig& config) {
  ChoiceLayout layout;
  layout.num_experts = static_cast<int32_t>(config.n_routed_experts);
  layout.experts_per_token = static_cast<int32_t>(config.num_experts_per_tok);
  layout.topk = static_cast<int32_t>(config.index_topk);
  for (int32_t i = 0; i < static_cast<int32_t>(config.num_hidden_layers); ++i) {
    const LayerSpec& spec = config.layers[static_cast<std::size_t>(i)];
    if (!spec.hash_routed) {
      layout.routed_layers.push_back(i);
    }
    if (spec.kind == LayerKind::kC4) {
      layout.picking_layers.push_back(i);
      layout.ratio = static_cast<int32_t>(spec.ratio);
    }
  }
  return layout;
}

}  // namespace baleen::cache
