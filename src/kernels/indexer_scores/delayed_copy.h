#pragma once
// A copy on the device that first lets time pass: the predecessor in tests of programmatic
// dependent launch, where a successor that reads too early must get stale bytes. Lets its successor
// start at once.
//
//   launch_delayed_copy(to, from, bytes, /*delay_us=*/30, stream);

#include <cstdint>

#include "device/stream_handle.h"

namespace baleen::kernels::testing {

void launch_delayed_copy(
    void* to, const void* from, int64_t bytes, int32_t delay_us, device::StreamHandle stream);

}  // namespace baleen::kernels::testing
