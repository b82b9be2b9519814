#pragma once
// Picked entries as they are shipped from engine to trainer: per token and layer the smallest of a
// bitmap, ascending numbers in two parts (pick_codec.h) and the difference to the token before, so
// sizes vary and a stream is read from its front. Or nothing but one 32-bit hash per set, from
// which the trainer sees whether its own choice is the same; it then fetches the sets that are not.
// Pure but for the token before, which encoder and decoder keep.
//
//   PickStreamWriter writer(layout, /*first_position=*/0);
//   for (...) writer.add(entries_by_layer, bytes);
//   PickStreamReader reader(layout, 0, bytes);
//   while (reader.next(entries_by_layer)) ...
//
//   std::vector<uint32_t> hashes = pick_hashes(layout, records);   // verify, then fetch

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/choice_layout.h"
#include "cache/choice_records.h"

namespace baleen::cache {

/// First byte of a set that is stored as what changed: then the number of entries that came or went
/// and the ascending distances between them, each in base 128, low digits first.
inline constexpr uint8_t kChangedPicks = 3;

using PicksByLayer = std::vector<std::vector<int32_t>>;  // picking layers; entries ascending

class PickStreamWriter {
 public:
  PickStreamWriter(const ChoiceLayout& layout, int32_t first_position);

  /// Appends the sets of the next position: min(visible, topk) entries in each (checked). Nothing
  /// while every visible entry is picked.
  void add(const PicksByLayer& picks, std::vector<uint8_t>& bytes);

 private:
  ChoiceLayout layout_;
  int32_t position_;
  PicksByLayer before_;  // of the token before, where it had any stored
};

class PickStreamReader {
 public:
  /// Keeps the span.
  PickStreamReader(const ChoiceLayout& layout,
                   int32_t first_position,
                   std::span<const uint8_t> bytes);

  /// Sets of the next position. Throws Error when the bytes are no stream of this layout.
  void next(PicksByLayer& picks);
  /// Bytes read so far.
  std::size_t used() const { return used_; }

 private:
  uint64_t number();
  void read_changes(const std::vector<int32_t>& before,
                    int32_t visible,
                    std::vector<int32_t>& picks);

  ChoiceLayout layout_;
  int32_t position_;
  std::span<const uint8_t> bytes_;
  std::size_t used_ = 0;
  PicksByLayer before_;
};

/// Low half of XXH3-64 over the entries as little-endian i32.
uint32_t pick_hash(std::span<const int32_t> entries);
/// u32 [positions, picking layers]; 0 where every visible entry is picked. Throws Error as
/// ChoiceReader does.
std::vector<uint32_t> pick_hashes(const ChoiceLayout& layout, const ChoiceRecords& records);

}  // namespace baleen::cache
