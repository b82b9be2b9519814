#pragma once
// One 32-bit hash per set of picked entries, from which a trainer sees whether its own choice is
// the same without having the other's sets. Pure.
//
//   std::vector<uint32_t> hashes = pick_hashes(layout, records);

#include <cstdint>
#include <span>
#include <vector>

#include "cache/choice_layout.h"
#include "cache/choice_records.h"

namespace baleen::cache {

/// Low half of XXH3-64 over the entries as little-endian i32.
uint32_t pick_hash(std::span<const int32_t> entries);
/// u32 [positions, picking layers]; 0 where every visible entry is picked. Throws Error as
/// ChoiceReader does.
std::vector<uint32_t> pick_hashes(const ChoiceLayout& layout, const ChoiceRecords& records);

}  // namespace baleen::cache
