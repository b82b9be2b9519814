#include "cache/choice_records.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "cache/pick_codec.h"

namespace baleen::cache {
namespace {

void append_bytes(std::vector<uint8_t>& to,
                  const std::vector<uint8_t>& from,
                  int64_t begin,
                  int64_t count) {
  const auto first = from.begin() + static_cast<std::ptrdiff_t>(begin);
  to.insert(to.end(), first, first + static_cast<std::ptrdiff_t>(count));
}

}  // namespace

void take_choices(ChoiceRecords& known,
                  const ChoiceRecords& more,
                  int32_t end,
                  const ChoiceLayout& layout) {
  const int32_t first = known.end();
  const int32_t last = std::min(end, more.end());
  if (last <= first) {
    return;
  }
  BALEEN_CHECK(more.first_position <= first,
               "choices from position {} behind those up to {}",
               more.first_position,
               first);
  const int64_t route_bytes = layout.route_bytes();
  append_bytes(known.routes,
               more.routes,
               (first - more.first_position) * route_bytes,
               (last - first) * route_bytes);
  append_bytes(known.picks,
               more.picks,
               layout.pick_bytes(more.first_position, first),
               layout.pick_bytes(first, last));
  known.count += last - first;
}

ChoiceReader::ChoiceReader(const ChoiceLayout& layout, const ChoiceRecords& records)
    : layout_(layout), records_(records) {
  int64_t begin = 0;
  for (int32_t position = records.first_position; position < records.end(); ++position) {
    pick_begin_.push_back(begin);
    begin += layout.pick_bytes(position);
  }
  pick_begin_.push_back(begin);
  const int64_t route_bytes = records.count * layout.route_bytes();
  if (static_cast<int64_t>(records.routes.size()) != route_bytes ||
      static_cast<int64_t>(records.picks.size()) != begin) {
    throw Error(fmt::format(
        "choices of {} positions from {} on have {} bytes of routes and {} of picks, expected {} "
        "and {}",
        records.count,
        records.first_position,
        records.routes.size(),
        records.picks.size(),
        route_bytes,
        begin));
  }
}

std::size_t ChoiceReader::row_of(int32_t position) const {
  BALEEN_CHECK(position >= records_.first_position && position < records_.end(),
               "position {} outside [{}, {})",
               position,
               records_.first_position,
               records_.end());
  return static_cast<std::size_t>(position - records_.first_position);
}

std::vector<int32_t> ChoiceReader::experts(int32_t position, std::size_t routed_layer) const {
  BALEEN_CHECK(routed_layer < layout_.routed_layers.size(), "routed layer {}", routed_layer);
  const auto k = static_cast<std::size_t>(layout_.experts_per_token);
  const auto width = static_cast<std::size_t>(layout_.expert_id_bytes());
  const std::size_t begin =
      row_of(position) * static_cast<std::size_t>(layout_.route_bytes()) + routed_layer * k * width;
  std::vector<int32_t> experts;
  for (std::size_t i = 0; i < k; ++i) {
    const uint8_t* id = records_.routes.data() + begin + i * width;
    const int32_t expert = width == 1 ? id[0] : id[0] + 256 * id[1];
    if (expert >= layout_.num_experts) {
      throw Error(fmt::format(
          "choices of position {} name expert {} of {}", position, expert, layout_.num_experts));
    }
    experts.push_back(expert);
  }
  return experts;
}

std::vector<int32_t> ChoiceReader::picks(int32_t position, std::size_t picking_layer) const {
  BALEEN_CHECK(picking_layer < layout_.picking_layers.size(), "picking layer {}", picking_layer);
  const int32_t visible = layout_.visible_entries(position);
  const auto set_bytes = static_cast<std::size_t>(coded_picks_bytes(visible, layout_.topk));
  const auto begin =
      static_cast<std::size_t>(pick_begin_[row_of(position)]) + picking_layer * set_bytes;
  std::vector<int32_t> picks;
  decode_picks(std::span(records_.picks).subspan(begin, set_bytes), visible, layout_.topk, picks);
  return picks;
}

}  // namespace baleen::cache
