#include "cache/pick_stream.h"

#include <algorithm>
#include <array>
#include <iterator>

#include <fmt/format.h>
#include <xxhash.h>

#include "base/check.h"
#include "base/error.h"
#include "cache/pick_codec.h"

namespace baleen::cache {
namespace {

void append_number(uint64_t value, std::vector<uint8_t>& bytes) {
  while (value >= 128) {
    bytes.push_back(static_cast<uint8_t>(value % 128 + 128));
    value /= 128;
  }
  bytes.push_back(static_cast<uint8_t>(value));
}

std::vector<int32_t> changes_between(const std::vector<int32_t>& before,
                                     const std::vector<int32_t>& now) {
  std::vector<int32_t> changes;
  std::set_symmetric_difference(
      before.begin(), before.end(), now.begin(), now.end(), std::back_inserter(changes));
  return changes;
}

void append_changes(const std::vector<int32_t>& changes, std::vector<uint8_t>& bytes) {
  bytes.push_back(kChangedPicks);
  append_number(changes.size(), bytes);
  int32_t last = -1;
  for (const int32_t entry : changes) {
    append_number(static_cast<uint64_t>(entry - last - 1), bytes);
    last = entry;
  }
}

}  // namespace

PickStreamWriter::PickStreamWriter(const ChoiceLayout& layout, int32_t first_position)
    : layout_(layout), position_(first_position), before_(layout.picking_layers.size()) {}

void PickStreamWriter::add(const PicksByLayer& picks, std::vector<uint8_t>& bytes) {
  BALEEN_CHECK(picks.size() == before_.size(), "{} layers of {}", picks.size(), before_.size());
  const int32_t visible = layout_.visible_entries(position_++);
  if (visible <= layout_.topk) {
    return;
  }
  std::vector<uint8_t> changed;
  for (std::size_t layer = 0; layer < picks.size(); ++layer) {
    const auto set_bytes = static_cast<std::size_t>(coded_picks_bytes(visible, layout_.topk));
    changed.clear();
    if (!before_[layer].empty()) {
      append_changes(changes_between(before_[layer], picks[layer]), changed);
    }
    if (!changed.empty() && changed.size() < set_bytes) {
      BALEEN_CHECK(static_cast<int32_t>(picks[layer].size()) == layout_.topk &&
                       picks[layer].back() < visible,
                   "{} picks of {} visible entries",
                   picks[layer].size(),
                   visible);
      bytes.insert(bytes.end(), changed.begin(), changed.end());
    } else {
      encode_picks(picks[layer], visible, layout_.topk, bytes);
    }
    before_[layer] = picks[layer];
  }
}

PickStreamReader::PickStreamReader(const ChoiceLayout& layout,
                                   int32_t first_position,
                                   std::span<const uint8_t> bytes)
    : layout_(layout),
      position_(first_position),
      bytes_(bytes),
      before_(layout.picking_layers.size()) {}

uint64_t PickStreamReader::number() {
  uint64_t value = 0;
  for (int shift = 0; shift < 35; shift += 7) {
    if (used_ == bytes_.size()) {
      throw Error("coded picks end within a number");
    }
    const uint8_t digit = bytes_[used_++];
    value |= static_cast<uint64_t>(digit % 128) << shift;
    if (digit < 128) {
      return value;
    }
  }
  throw Error("coded picks hold a number of more than 35 bits");
}

void PickStreamReader::read_changes(const std::vector<int32_t>& before,
                                    int32_t visible,
                                    std::vector<int32_t>& picks) {
  ++used_;
  const uint64_t count = number();
  if (before.empty() || count > 2 * static_cast<uint64_t>(layout_.topk)) {
    throw Error(fmt::format("coded picks change {} entries of {} before", count, before.size()));
  }
  std::vector<int32_t> changes;
  int64_t last = -1;
  for (uint64_t i = 0; i < count; ++i) {
    last += static_cast<int64_t>(number()) + 1;
    if (last >= visible) {
      throw Error(fmt::format("coded picks change entry {} of {} visible ones", last, visible));
    }
    changes.push_back(static_cast<int32_t>(last));
  }
  picks = changes_between(before, changes);
  if (static_cast<int32_t>(picks.size()) != layout_.topk) {
    throw Error(
        fmt::format("coded picks hold {} entries, {} expected", picks.size(), layout_.topk));
  }
}

void PickStreamReader::next(PicksByLayer& picks) {
  picks.resize(before_.size());
  const int32_t visible = layout_.visible_entries(position_++);
  for (std::size_t layer = 0; layer < before_.size(); ++layer) {
    if (visible > layout_.topk && used_ < bytes_.size() && bytes_[used_] == kChangedPicks) {
      read_changes(before_[layer], visible, picks[layer]);
    } else {
      used_ += decode_picks(bytes_.subspan(used_), visible, layout_.topk, picks[layer]);
    }
    if (visible > layout_.topk) {
      before_[layer] = picks[layer];
    }
  }
}

uint32_t pick_hash(std::span<const int32_t> entries) {
  std::vector<uint8_t> bytes;
  bytes.reserve(entries.size() * 4);
  for (const int32_t entry : entries) {
    for (int shift = 0; shift < 32; shift += 8) {
      bytes.push_back(static_cast<uint8_t>(static_cast<uint32_t>(entry) >> shift));
    }
  }
  return static_cast<uint32_t>(XXH3_64bits(bytes.data(), bytes.size()));
}

std::vector<uint32_t> pick_hashes(const ChoiceLayout& layout, const ChoiceRecords& records) {
  std::vector<uint32_t> hashes;
  std::vector<int32_t> entries;
  std::size_t begin = 0;
  for (int32_t position = records.first_position; position < records.end(); ++position) {
    const int32_t visible = layout.visible_entries(position);
    for (std::size_t layer = 0; layer < layout.picking_layers.size(); ++layer) {
      begin += decode_picks(std::span(records.picks).subspan(begin), visible, layout.topk, entries);
      hashes.push_back(visible <= layout.topk ? 0 : pick_hash(entries));
    }
  }
  return hashes;
}

}  // namespace baleen::cache
