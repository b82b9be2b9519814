#include "engine/scripted_choices.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "cache/pick_codec.h"

namespace baleen::engine {
namespace {

void append_experts(const cache::ChoiceLayout& layout,
                    int32_t id,
                    int32_t layer,
                    std::vector<uint8_t>& bytes) {
  // Consecutive ids from a place that the token decides, without wrapping round.
  const int32_t places = layout.num_experts - layout.experts_per_token + 1;
  const int32_t first = (id * 31 + layer * 7) % places;
  for (int32_t i = 0; i < layout.experts_per_token; ++i) {
    bytes.push_back(static_cast<uint8_t>((first + i) % 256));
    if (layout.expert_id_bytes() == 2) {
      bytes.push_back(static_cast<uint8_t>((first + i) / 256));
    }
  }
}

}  // namespace

cache::ChoiceRecords scripted_choices(const cache::ChoiceLayout& layout,
                                      std::span<const int32_t> ids,
                                      int32_t first_position) {
  cache::ChoiceRecords records;
  records.first_position = first_position;
  records.count = static_cast<int32_t>(ids.size());
  for (int32_t i = 0; i < records.count; ++i) {
    const int32_t id = ids[static_cast<size_t>(i)];
    for (const int32_t layer : layout.routed_layers) {
      append_experts(layout, id, layer, records.routes);
    }
    const int32_t visible = layout.visible_entries(first_position + i);
    std::vector<int32_t> picks(static_cast<size_t>(std::min(visible, layout.topk)));
    for (const int32_t layer : layout.picking_layers) {
      const int32_t places = visible - static_cast<int32_t>(picks.size()) + 1;
      std::iota(picks.begin(), picks.end(), (id + layer) % places);
      cache::encode_picks(picks, visible, layout.topk, records.picks);
    }
  }
  return records;
}

}  // namespace baleen::engine
