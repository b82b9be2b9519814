#pragma once
// Counts what a test program allocates, to show that a loop allocates nothing. Linking the source
// file replaces the global allocation functions. Any thread.
//
//   const int64_t before = num_allocations();  ...  EXPECT_EQ(num_allocations(), before);

#include <cstdint>

namespace baleen::cache {

int64_t num_allocations();
/// Those of the calling thread.
int64_t num_allocations_of_thread();

}  // namespace baleen::cache
