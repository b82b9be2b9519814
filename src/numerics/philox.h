#pragma once
// Philox-4x32-10, a counter-based generator: 128 random bits as a pure function of a counter and a
// key. A stream is a key (seed, stream id); the counter is the logical index of what is drawn,
// never the order of drawing. Host and device, any thread.
//
//   PhiloxBlock random = philox4x32_10({sample, position, element, 0}, {seed, stream});
//   float u = uniform_float(random.words[0]);   // [0, 1)

#include <cmath>
#include <cstdint>

#include "numerics/host_device.h"

namespace baleen::numerics {

struct PhiloxBlock {
  uint32_t words[4];
};

struct PhiloxKey {
  uint32_t words[2];
};

BALEEN_HOST_DEVICE inline PhiloxBlock philox4x32_10(PhiloxBlock counter, PhiloxKey key) {
  constexpr uint32_t kMultiplier0 = 0xD2511F53U;
  constexpr uint32_t kMultiplier1 = 0xCD9E8D57U;
  constexpr uint32_t kWeyl0 = 0x9E3779B9U;
  constexpr uint32_t kWeyl1 = 0xBB67AE85U;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = static_cast<uint64_t>(kMultiplier0) * counter.words[0];
    const uint64_t product1 = static_cast<uint64_t>(kMultiplier1) * counter.words[2];
    counter = {{static_cast<uint32_t>(product1 >> 32) ^ counter.words[1] ^ key.words[0],
                static_cast<uint32_t>(product1),
                static_cast<uint32_t>(product0 >> 32) ^ counter.words[3] ^ key.words[1],
                static_cast<uint32_t>(product0)}};
    key.words[0] += kWeyl0;
    key.words[1] += kWeyl1;
  }
  return counter;
}

BALEEN_HOST_DEVICE inline PhiloxKey philox_key(uint64_t key) {
  return {{static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)}};
}

/// [0, 1), multiples of 2^-24.
BALEEN_HOST_DEVICE inline float uniform_float(uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1p-24F;
}

/// [0, 1), multiples of 2^-53.
BALEEN_HOST_DEVICE inline double uniform_double(uint32_t low, uint32_t high) {
  const uint64_t bits = (static_cast<uint64_t>(high) << 32) | low;
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

struct NormalPair {
  float first;
  float second;
};

/// Two independent standard normal numbers (Box-Muller); at most 6.7 in magnitude, since the
/// smallest radius argument is 2^-32.
BALEEN_HOST_DEVICE inline NormalPair normal_pair(uint32_t radius_word, uint32_t angle_word) {
  const double open = (static_cast<double>(radius_word) + 1.0) * 0x1p-32;  // (0, 1]
  const double radius = sqrt(-2.0 * log(open));
  const double angle = 6.283185307179586 * (static_cast<double>(angle_word) * 0x1p-32);
  return {static_cast<float>(radius * cos(angle)), static_cast<float>(radius * sin(angle))};
}

}  // namespace baleen::numerics
