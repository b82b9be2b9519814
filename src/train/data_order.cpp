#include "train/data_order.h"

#include <bit>

#include "base/check.h"
#include "numerics/philox.h"

namespace baleen::train {
namespace {

constexpr uint32_t kShuffleStream = 101;  // of the random numbers of a run
constexpr int kRounds = 6;

/// A keyed permutation of [0, 2^(2 * half_bits)): a balanced Feistel network.
uint64_t permute(uint64_t value, int half_bits, uint64_t seed, uint32_t epoch) {
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  uint64_t left = value >> half_bits;
  uint64_t right = value & mask;
  for (int round = 0; round < kRounds; ++round) {
    const numerics::PhiloxBlock block = numerics::philox4x32_10(
        {{static_cast<uint32_t>(right),
          static_cast<uint32_t>(right >> 32),
          epoch,
          static_cast<uint32_t>(round)}},
        {{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32) ^ kShuffleStream}});
    const uint64_t random = block.words[0] | (static_cast<uint64_t>(block.words[1]) << 32);
    const uint64_t next = left ^ (random & mask);
    left = right;
    right = next;
  }
  return (left << half_bits) | right;
}

}  // namespace

int64_t drawn_sample(uint64_t seed, int64_t count, int64_t draw) {
  BALEEN_CHECK(count > 0 && draw >= 0, "count={} draw={}", count, draw);
  const auto epoch = static_cast<uint32_t>(draw / count);
  const auto size = static_cast<uint64_t>(count);
  const auto bits = static_cast<int>(std::bit_width(size - 1));
  const int half_bits = (bits + 1) / 2;
  auto value = static_cast<uint64_t>(draw % count);
  if (half_bits == 0) {
    return 0;
  }
  do {  // the range is at most four times the count, so few turns are enough
    value = permute(value, half_bits, seed, epoch);
  } while (value >= size);
  return static_cast<int64_t>(value);
}

}  // namespace baleen::train
