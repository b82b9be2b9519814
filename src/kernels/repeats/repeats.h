#pragma once
// For tests that repeat a launch very often and look for a single differing bit: a comparison on
// the device, so that thousands of results need no copy.
//
//   launch_count_differences(results, expected, words, repeats, differences, stream);

#include <cstdint>

#include "device/stream_handle.h"

namespace baleen::kernels::testing {

/// Adds to `differences` (i64, zeroed by the caller) the number of 32-bit words that differ in
/// `repeats` stretches of `words` words from the one stretch of `expected`. Capture-safe.
void launch_count_differences(const void* results,
                              const void* expected,
                              int64_t words,
                              int64_t repeats,
                              unsigned long long* differences,
                              device::StreamHandle stream);

}  // namespace baleen::kernels::testing
