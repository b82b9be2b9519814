#pragma once
// Division by a number that the host knows, as one multiplication: the plan of a step stands
// between its first load and its first request of weights, where a division's latency shows.
//
//   const Divisor workers = make_divisor(528);
//   workers.quotient(n) == n / 528;        // 0 <= n, and n < 2^32 / 528

#include <cstdint>

#include "numerics/host_device.h"

namespace baleen::kernels::experts {

struct Divisor {
  uint32_t value = 1;
  uint32_t inverse = 0;  // 2^32 / value, rounded up; not used for 1

  BALEEN_HOST_DEVICE int32_t quotient(int32_t n) const {
    const uint64_t product = uint64_t{static_cast<uint32_t>(n)} * inverse;
    return value == 1 ? n : static_cast<int32_t>(product >> 32);
  }
};

/// `value` >= 1.
inline Divisor make_divisor(int32_t value) {
  const auto divisor = static_cast<uint32_t>(value);
  const uint64_t inverse = ((uint64_t{1} << 32) + divisor - 1) / divisor;
  return {divisor, static_cast<uint32_t>(inverse)};
}

}  // namespace baleen::kernels::experts
