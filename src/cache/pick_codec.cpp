#include "cache/pick_codec.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "numerics/pick_shape.h"

namespace baleen::cache {
namespace {

using numerics::pick_shape;
using numerics::PickShape;

PickCode code_of(const PickShape& shape) {
  return shape.sorted ? PickCode::kSorted : PickCode::kBitmap;
}

void set_bit(uint8_t* bytes, int64_t bit) {
  bytes[bit / 8] = static_cast<uint8_t>(bytes[bit / 8] | (1U << (bit % 8)));
}

bool get_bit(const uint8_t* bytes, int64_t bit) {
  return (bytes[bit / 8] >> (bit % 8) & 1U) != 0;
}

void decode_bitmap(const uint8_t* bits,
                   int64_t num_bits,
                   int32_t visible,
                   std::vector<int32_t>& picks) {
  for (int64_t bit = 0; bit < num_bits; ++bit) {
    if (get_bit(bits, bit)) {
      if (bit >= visible) {
        throw Error(fmt::format("coded picks name entry {} of {} visible ones", bit, visible));
      }
      picks.push_back(static_cast<int32_t>(bit));
    }
  }
}

void decode_sorted(const uint8_t* low,
                   const PickShape& shape,
                   int32_t visible,
                   int32_t topk,
                   std::vector<int32_t>& picks) {
  const uint8_t* high = low + shape.low_bytes;
  const int64_t high_bits = 8 * (shape.bytes - 1 - shape.low_bytes);
  int32_t last = -1;
  for (int64_t bit = 0; bit < high_bits; ++bit) {
    if (!get_bit(high, bit)) {
      continue;
    }
    const auto index = static_cast<int64_t>(picks.size());
    if (index == topk) {
      throw Error(fmt::format("coded picks hold more than {} entries", topk));
    }
    int64_t pick = (bit - index) << shape.low_bits;
    for (int32_t k = 0; k < shape.low_bits; ++k) {
      pick |= int64_t{get_bit(low, index * shape.low_bits + k)} << k;
    }
    if (pick <= last || pick >= visible) {
      throw Error(fmt::format(
          "coded picks name entry {} behind {}, of {} visible ones", pick, last, visible));
    }
    last = static_cast<int32_t>(pick);
    picks.push_back(last);
  }
}

}  // namespace

int64_t coded_picks_bytes(int32_t visible, int32_t topk) {
  return visible <= topk ? 0 : pick_shape(visible, topk).bytes;
}

void encode_picks(std::span<const int32_t> picks,
                  int32_t visible,
                  int32_t topk,
                  std::vector<uint8_t>& bytes) {
  const auto count = static_cast<int32_t>(picks.size());
  BALEEN_CHECK(count == std::min(visible, topk),
               "{} picks of {} visible entries, top {}",
               count,
               visible,
               topk);
  int32_t last = -1;
  for (const int32_t pick : picks) {
    BALEEN_CHECK(pick > last && pick < visible, "pick {} behind {} of {}", pick, last, visible);
    last = pick;
  }
  if (visible <= topk) {
    return;
  }
  const PickShape shape = pick_shape(visible, topk);
  const std::size_t begin = bytes.size();
  bytes.resize(begin + static_cast<std::size_t>(shape.bytes), 0);
  bytes[begin] = static_cast<uint8_t>(code_of(shape));
  uint8_t* body = bytes.data() + begin + 1;
  if (!shape.sorted) {
    for (const int32_t pick : picks) {
      set_bit(body, pick);
    }
    return;
  }
  for (std::size_t i = 0; i < picks.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    for (int32_t k = 0; k < shape.low_bits; ++k) {
      if ((picks[i] >> k & 1) != 0) {
        set_bit(body, index * shape.low_bits + k);
      }
    }
    set_bit(body + shape.low_bytes, (picks[i] >> shape.low_bits) + index);
  }
}

std::size_t decode_picks(std::span<const uint8_t> bytes,
                         int32_t visible,
                         int32_t topk,
                         std::vector<int32_t>& picks) {
  picks.clear();
  if (visible <= topk) {
    picks.resize(static_cast<std::size_t>(visible));
    std::iota(picks.begin(), picks.end(), 0);
    return 0;
  }
  const PickShape shape = pick_shape(visible, topk);
  if (static_cast<int64_t>(bytes.size()) < shape.bytes) {
    throw Error(fmt::format("coded picks of {} bytes, {} expected for {} of {} entries",
                            bytes.size(),
                            shape.bytes,
                            topk,
                            visible));
  }
  if (bytes[0] != static_cast<uint8_t>(code_of(shape))) {
    throw Error(fmt::format("coded picks begin with code {}, {} expected for {} of {} entries",
                            bytes[0],
                            static_cast<int>(code_of(shape)),
                            topk,
                            visible));
  }
  const uint8_t* body = bytes.data() + 1;
  if (!shape.sorted) {
    decode_bitmap(body, 8 * (shape.bytes - 1), visible, picks);
  } else {
    decode_sorted(body, shape, visible, topk, picks);
  }
  if (static_cast<int64_t>(picks.size()) != topk) {
    throw Error(fmt::format("coded picks hold {} entries, {} expected", picks.size(), topk));
  }
  return static_cast<std::size_t>(shape.bytes);
}

}  // namespace baleen::cache
