#pragma once
// Where a role stands in a ring of stages that barriers guard: the stage, and the parity of the
// phase that it waits for there.
//
//   RingPlace<kStages> place;
//   barrier_wait(&full[place.stage], place.parity);  ...  place.advance();

#include <cstdint>

namespace baleen::kernels::ptx {

template <int kStages>
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1U;
    }
  }
};

}  // namespace baleen::kernels::ptx
