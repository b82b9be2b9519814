#include "cache/choice_arrays.h"

#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "cache/pick_codec.h"

namespace baleen::cache {
namespace {

/// Where a main layer's experts come from.
struct RouteSource {
  bool by_token = false;
  std::size_t index = 0;  // in the list that has the layer
};

std::vector<RouteSource> route_sources(const ChoiceLayout& layout, const TokenRoutes* by_token) {
  const std::size_t num_by_token = by_token != nullptr ? by_token->layers.size() : 0;
  std::vector<RouteSource> sources(layout.routed_layers.size() + num_by_token);
  std::size_t routed = 0;
  std::size_t listed = 0;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const auto layer = static_cast<int32_t>(i);
    if (routed < layout.routed_layers.size() && layout.routed_layers[routed] == layer) {
      sources[i] = {false, routed++};
    } else {
      BALEEN_CHECK(listed < num_by_token && by_token->layers[listed] == layer,
                   "nobody knows the experts of layer {}",
                   layer);
      sources[i] = {true, listed++};
    }
  }
  return sources;
}

}  // namespace

std::span<const int32_t> TokenRoutes::of(std::size_t layer, int32_t id) const {
  BALEEN_CHECK(layer < layers.size() && id >= 0 && id < vocab_size, "layer {} id {}", layer, id);
  const auto k = static_cast<std::size_t>(experts_per_token);
  return std::span(experts).subspan(
      (layer * static_cast<std::size_t>(vocab_size) + static_cast<std::size_t>(id)) * k, k);
}

std::vector<int32_t> expert_array(const ChoiceLayout& layout,
                                  const ChoiceRecords& records,
                                  const TokenRoutes* by_token,
                                  std::span<const int32_t> ids) {
  const auto count = static_cast<std::size_t>(records.count);
  BALEEN_CHECK(ids.size() == count, "{} ids for {} positions", ids.size(), count);
  if (static_cast<int64_t>(records.routes.size()) != records.count * layout.route_bytes()) {
    throw Error(fmt::format("routes of {} positions have {} bytes, expected {}",
                            count,
                            records.routes.size(),
                            records.count * layout.route_bytes()));
  }
  const std::vector<RouteSource> sources = route_sources(layout, by_token);
  const auto k = static_cast<std::size_t>(layout.experts_per_token);
  const auto width = static_cast<std::size_t>(layout.expert_id_bytes());
  std::vector<int32_t> out;
  out.reserve(count * sources.size() * k);
  for (std::size_t row = 0; row < count; ++row) {
    const uint8_t* routes =
        records.routes.data() + row * static_cast<std::size_t>(layout.route_bytes());
    for (const RouteSource& source : sources) {
      if (source.by_token) {
        const std::span<const int32_t> experts = by_token->of(source.index, ids[row]);
        out.insert(out.end(), experts.begin(), experts.end());
        continue;
      }
      const uint8_t* id = routes + source.index * k * width;
      for (std::size_t i = 0; i < k; ++i, id += width) {
        out.push_back(width == 1 ? id[0] : id[0] + 256 * id[1]);
      }
    }
  }
  return out;
}

std::vector<int32_t> pick_array(const ChoiceLayout& layout, const ChoiceRecords& records) {
  const auto topk = static_cast<std::size_t>(layout.topk);
  std::vector<int32_t> out;
  out.reserve(static_cast<std::size_t>(records.count) * layout.picking_layers.size() * topk);
  std::vector<int32_t> picks;
  std::span<const uint8_t> left(records.picks);
  for (int32_t position = records.first_position; position < records.end(); ++position) {
    const int32_t visible = layout.visible_entries(position);
    for (std::size_t layer = 0; layer < layout.picking_layers.size(); ++layer) {
      left = left.subspan(decode_picks(left, visible, layout.topk, picks));
      out.insert(out.end(), picks.begin(), picks.end());
      out.resize(out.size() + topk - picks.size(), -1);
    }
  }
  if (!left.empty()) {
    throw Error(
        fmt::format("{} bytes behind the picks of {} positions", left.size(), records.count));
  }
  return out;
}

}  // namespace baleen::cache
