#pragma once
// Oracle of a coded set of picks, from the format's description alone (docs/contracts/choices.md):
// both codes are written bit by bit, the shorter one is kept, the bitmap where they are as long.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace baleen::kernels {

inline std::vector<uint8_t> bits_as_bytes(const std::vector<bool>& bits) {
  std::vector<uint8_t> bytes((bits.size() + 7) / 8, 0);
  for (std::size_t i = 0; i < bits.size(); ++i) {
    bytes[i / 8] = static_cast<uint8_t>(bytes[i / 8] | (bits[i] ? 1U << (i % 8) : 0U));
  }
  return bytes;
}

/// `picks` ascending, fewer than `visible`.
inline std::vector<uint8_t> pick_codes_oracle(const std::vector<int32_t>& picks, int32_t visible) {
  std::vector<bool> is_picked(static_cast<std::size_t>(visible), false);
  int32_t low_bits = 0;
  for (auto ratio = visible / static_cast<int32_t>(picks.size()); ratio > 1; ratio /= 2) {
    ++low_bits;
  }
  std::vector<bool> low;
  const auto last = static_cast<std::size_t>((visible - 1) >> low_bits);
  std::vector<bool> high(picks.size() + last, false);
  for (std::size_t i = 0; i < picks.size(); ++i) {
    is_picked[static_cast<std::size_t>(picks[i])] = true;
    for (int32_t k = 0; k < low_bits; ++k) {
      low.push_back((picks[i] >> k & 1) != 0);
    }
    high[static_cast<std::size_t>(picks[i] >> low_bits) + i] = true;
  }
  std::vector<uint8_t> bitmap = {1};
  for (const uint8_t byte : bits_as_bytes(is_picked)) {
    bitmap.push_back(byte);
  }
  std::vector<uint8_t> sorted = {2};
  for (const std::vector<bool>& part : {low, high}) {
    for (const uint8_t byte : bits_as_bytes(part)) {
      sorted.push_back(byte);
    }
  }
  return sorted.size() < bitmap.size() ? sorted : bitmap;
}

}  // namespace baleen::kernels
