#pragma once
// Counts the locks that this program's own code takes, to show that a loop takes none. Linking the
// source file puts a function of its own before the C library's pthread_mutex_lock; calls from
// shared libraries (the C++ library, CUDA, the metrics library) go through it and are counted
// apart. Test support, any thread.
//
//   const int64_t before = num_locks_of_thread();  ...  EXPECT_EQ(num_locks_of_thread(), before);

#include <cstdint>

namespace baleen {

/// False in a build with sanitizers, which need the function for themselves: the counts stay 0.
bool locks_are_counted();
/// Taken by the calling thread, in code of this program.
int64_t num_locks_of_thread();
/// Taken by the calling thread inside shared libraries.
int64_t num_library_locks_of_thread();

}  // namespace baleen
