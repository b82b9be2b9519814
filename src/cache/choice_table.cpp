#include "cache/choice_table.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace baleen::cache {
namespace {

int32_t block_at(int32_t position) {
  return position / static_cast<int32_t>(kPageTokens);
}

std::size_t row_of(int32_t position) {
  return static_cast<std::size_t>(position) % static_cast<std::size_t>(kPageTokens);
}

}  // namespace

ChoiceTable::ChoiceTable(ChoiceLayout layout, int64_t num_full_pages)
    : layout_(std::move(layout)), pages_(static_cast<std::size_t>(num_full_pages + 1)) {}

int64_t ChoiceTable::page_bytes(const ChoiceLayout& layout, int32_t block) {
  const int32_t first = block * static_cast<int32_t>(kPageTokens);
  const auto end = first + static_cast<int32_t>(kPageTokens);
  const int64_t routes = kPageTokens * layout.route_bytes();
  if (layout.pick_bytes(end - 1) == 0) {
    return routes;
  }
  const int64_t places = (kPageTokens + 1) * static_cast<int64_t>(sizeof(int32_t));
  return routes + layout.pick_bytes(first, end) + places;
}

int64_t ChoiceTable::most_page_bytes(const ChoiceLayout& layout, int64_t max_context) {
  int64_t most = 0;
  for (int64_t block = 0; block * kPageTokens < max_context; ++block) {
    most = std::max(most, page_bytes(layout, static_cast<int32_t>(block)));
  }
  return most;
}

int64_t ChoiceTable::bytes() const {
  std::size_t total = 0;
  for (const Page& page : pages_) {
    total += page.routes.capacity() + page.picks.capacity() +
             page.pick_begin.capacity() * sizeof(int32_t);
  }
  return static_cast<int64_t>(total);
}

ChoiceTable::Page& ChoiceTable::at(FullPage page) {
  BALEEN_CHECK(page.value() > 0 && static_cast<std::size_t>(page.value()) < pages_.size(),
               "page {} of {}",
               page.value(),
               pages_.size());
  return pages_[static_cast<std::size_t>(page.value())];
}

/// Lays the page out for a block. Sizes of picks depend on positions.
void ChoiceTable::begin(Page& page, int32_t block) const {
  page.written.reset();
  if (page.block == block) {
    return;
  }
  page.block = block;
  page.routes.assign(static_cast<std::size_t>(kPageTokens * layout_.route_bytes()), 0);
  page.pick_begin.clear();
  page.picks.clear();
  const int32_t first = block * static_cast<int32_t>(kPageTokens);
  const auto end = first + static_cast<int32_t>(kPageTokens);
  if (layout_.pick_bytes(end - 1) == 0) {
    return;
  }
  int32_t total = 0;
  page.pick_begin.reserve(static_cast<std::size_t>(kPageTokens) + 1);
  for (int32_t position = first; position < end; ++position) {
    page.pick_begin.push_back(total);
    total += static_cast<int32_t>(layout_.pick_bytes(position));
  }
  page.pick_begin.push_back(total);
  page.picks.assign(static_cast<std::size_t>(total), 0);
}

std::span<uint8_t> ChoiceTable::routes_of(Page& page, int32_t position) const {
  const auto bytes = static_cast<std::size_t>(layout_.route_bytes());
  return std::span(page.routes).subspan(row_of(position) * bytes, bytes);
}

std::span<uint8_t> ChoiceTable::picks_of(Page& page, int32_t position) const {
  if (page.pick_begin.empty()) {
    return {};
  }
  const auto first = static_cast<std::size_t>(page.pick_begin[row_of(position)]);
  const auto end = static_cast<std::size_t>(page.pick_begin[row_of(position) + 1]);
  return std::span(page.picks).subspan(first, end - first);
}

void ChoiceTable::write(FullPage page,
                        int32_t position,
                        std::span<const uint8_t> routes,
                        std::span<const uint8_t> picks) {
  Page& record = at(page);
  if (row_of(position) == 0 || record.block != block_at(position)) {
    begin(record, block_at(position));
  }
  const std::span<uint8_t> to_routes = routes_of(record, position);
  const std::span<uint8_t> to_picks = picks_of(record, position);
  BALEEN_CHECK(routes.size() == to_routes.size() && picks.size() == to_picks.size(),
               "position {}: {} bytes of routes for {}, {} of picks for {}",
               position,
               routes.size(),
               to_routes.size(),
               picks.size(),
               to_picks.size());
  std::copy(routes.begin(), routes.end(), to_routes.begin());
  std::copy(picks.begin(), picks.end(), to_picks.begin());
  record.written.set(row_of(position));
}

void ChoiceTable::read(FullPage page,
                       int32_t position,
                       std::vector<uint8_t>& routes,
                       std::vector<uint8_t>& picks) const {
  // The spans are only read from.
  auto& self = const_cast<ChoiceTable&>(*this);
  Page& record = self.at(page);
  BALEEN_CHECK(record.block == block_at(position) && record.written.test(row_of(position)),
               "no record of position {} in page {}, which holds block {}",
               position,
               page.value(),
               record.block);
  const std::span<uint8_t> from_routes = routes_of(record, position);
  const std::span<uint8_t> from_picks = picks_of(record, position);
  routes.insert(routes.end(), from_routes.begin(), from_routes.end());
  picks.insert(picks.end(), from_picks.begin(), from_picks.end());
}

void ChoiceTable::copy(int32_t block, FullPage source, FullPage target, int32_t num_tokens) {
  const Page& from = at(source);
  Page& to = at(target);
  BALEEN_CHECK(
      from.block == block, "page {} holds block {}, not {}", source.value(), from.block, block);
  begin(to, block);
  to.routes = from.routes;
  to.picks = from.picks;
  for (int32_t row = 0; row < num_tokens; ++row) {
    to.written.set(static_cast<std::size_t>(row), from.written.test(static_cast<std::size_t>(row)));
  }
}

}  // namespace baleen::cache
