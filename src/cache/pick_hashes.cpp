#include "cache/pick_hashes.h"

#include <cstddef>

#include <xxhash.h>

#include "cache/pick_codec.h"

namespace baleen::cache {

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
