#pragma once
// The noise of a draw, as a function of what is drawn. Pure; any thread.
//
//   double g = gumbel_noise(seed, sample_index, position, token_id, kSamplingStream);

#include <cmath>
#include <cstdint>

#include "numerics/host_device.h"
#include "numerics/philox.h"

namespace baleen::kernels {

/// Largest value that gumbel_noise returns: u is at most 1 - 2^-53.
inline const double kLargestGumbel = -std::log(-std::log1p(-0x1p-53));

/// -log(-log u), u = (k + 1/2) 2^-52 with the upper 52 bits k of the first two words.
BALEEN_HOST_DEVICE inline double gumbel_noise(
    uint64_t seed, int32_t sample_index, int64_t position, int32_t element, uint32_t stream) {
  const numerics::PhiloxBlock random =
      numerics::philox4x32_10({{static_cast<uint32_t>(sample_index),
                                static_cast<uint32_t>(position),
                                static_cast<uint32_t>(element),
                                stream}},
                              numerics::philox_key(seed));
  const uint64_t bits = ((static_cast<uint64_t>(random.words[0]) << 32) | random.words[1]) >> 12;
  const double u = (static_cast<double>(bits) + 0.5) * 0x1p-52;
  return -std::log(-std::log(u));
}

}  // namespace baleen::kernels
